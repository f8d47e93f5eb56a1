"""Remove layers: a shallower model without the layers that a pattern names."""

from __future__ import annotations

from daydream import Graph
from daydream.transforms import stages

STAGE = stages.WORK


def remove_layers(graph: Graph, *, layers: str) -> None:
    """Predict a model without some layers, for example `layers="blocks.3*"`.

    All work of the modules whose path matches goes: forward, backward and optimizer, on the
    CPU and on the device, with the launches. Of an optimizer step that treats all parameters
    in one call, and of collectives, no part can be told to be a layer's: these stay.

    Not modelled: whether the shapes of the remaining layers still fit, and convergence.
    """
    gone = graph.select(layer=layers)
    gone.need(
        f"work of layers {layers!r}; layers are recorded by `daydream collect`, and `*` stands for any text"
    )
    gone = gone | gone.launched()
    gone = gone - gone.where(kind="collective") - gone.where(kind="collective").launches()
    shared = graph.select(phase="optimizer") - gone
    if not len(gone.where(phase=("forward", "backward"))):
        graph.does_not_apply(f"layers {layers!r} do no work in the forward or backward pass")

    gone.remove()
    if len(shared) and not len(gone.where(phase="optimizer")):
        graph.note("The optimizer treats all parameters together, so its time stays.")
