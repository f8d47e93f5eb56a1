"""Plan: which strategy of parallel training fits the memory of many GPUs, and which is fastest."""
