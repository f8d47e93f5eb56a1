"""Fused attention: the softmax happens inside the matrix products around it."""

from daydream import Graph


def my_optimization(graph: Graph, *, product_speedup: float = 1.5) -> None:
    """Predict attention whose products run faster and whose softmax costs nothing.

    `product_speedup` is a guess; time the fused kernel to know.
    """
    kernels = graph.select(kind="kernel", layer="*.attention.core")
    kernels.where(name="softmax").remove()  # their launches go with them
    kernels.where(name="gemm").scale(1 / product_speedup)
