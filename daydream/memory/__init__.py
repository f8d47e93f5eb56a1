"""Memory: what a step holds, when, for whom, and what a change makes of it.

Recorded events become allocations with a lifetime and a kind; optimizations edit that table; PyTorch's
allocator, replayed, tells what is reserved for it.
"""
