"""Fused attention: the softmax happens inside the matrix products around it."""

from daydream import Graph


def my_optimization(graph: Graph, *, product_speedup: float = 1.0) -> None:
    """Predict attention without softmax kernels of its own."""
    attention = graph.select(kind="kernel", layer="*attention*")
    softmax = attention.where(name="(?i)softmax")
    (attention - softmax).where(name="(?i)gemm").scale(1 / product_speedup)
    softmax.remove()  # their launches go with them
