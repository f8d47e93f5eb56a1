"""Kineto JSON, as torch.profiler exports it, as a `Recording`. The only place that knows its names."""
