"""Channels last: convolutions read and write NHWC, so no kernel transposes their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daydream import Graph
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.FUSION
CODE = "model = model.to(memory_format=torch.channels_last)"
memory = unchanged

# cuDNN's and MIOpen's kernels that change the layout around a convolution.
TO_NHWC = r"nchwToNhwc|batched_transpose_\d+x\d+"
FROM_NHWC = "nhwcToNchw"
LAYOUT = rf"{FROM_NHWC}|{TO_NHWC}"
CONVOLUTION = r"(?i)conv"
NHWC_KERNEL = r"(?i)nhwc|ndhwc"


def channels_last(graph: Graph) -> None:
    """Predict tensors of convolutions in NHWC order: the kernels that transpose them go.

    Tensor-core convolutions compute in NHWC. On NCHW tensors the library transposes input,
    weight and output (and their gradients) around each of them; in channels-last memory
    nothing is left to transpose. The first such kernel of a step stays: the images still arrive as
    NCHW. Launches go with the kernels, the operators stay.

    Where a convolution's first such kernel turns NHWC into NCHW, its tensors lie in channels-last memory
    already, and the library turns them for a kernel that computes in NCHW: those stay.

    Assumes that every layer between keeps the order: one that does not brings copies back. Not
    modelled: convolutions that run in NCHW kernels today (they may run faster or slower in NHWC), and
    batch normalization and pooling, whose NHWC kernels are others.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels; on a CPU the layout is not modelled", lacks="device")
    around = kernels.where(op=CONVOLUTION) | kernels.where(name=CONVOLUTION)
    around.need("convolution")
    layout = kernels.where(name=LAYOUT)
    layout = layout - layout.where(op=r"^aten::(?!.*conv)")  # a transposition that the program asked for
    if not len(layout):
        graph.does_not_apply(
            "no kernel changes the layout around the convolutions: they run in NHWC already"
            if len(around.where(name=NHWC_KERNEL))
            else "no kernel changes the layout around the convolutions: they run in NCHW kernels, and what "
            "the library's NHWC kernels would take is not in this trace"
        )
    calls = layout.group_by("call")
    turned = calls.where(np.array([FROM_NHWC in name for name in calls.first().name.tolist()], bool)).tasks
    layout = layout - turned
    if not len(layout):
        graph.does_not_apply(
            "the tensors lie in channels-last memory already: the layout is changed for convolutions that "
            "run in NCHW kernels"
        )
    inputs = layout.where(name=TO_NHWC).group_by("rank", "step").first()
    gone = layout - inputs
    gone.need("more than one change of layout per step: only the images are transposed")
    total, each = int(gone.duration_ns.sum()), len(inputs)
    count = len(gone)
    gone.remove()
    graph.note(
        f"{count:,} layout kernels of {total / 1e6:,.2f} ms go; {each:,} stay, one per step, for the images."
    )


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: parameters in channels-last memory, and images as they come in."""
    import torch

    def to_channels_last(_module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            one.contiguous(memory_format=torch.channels_last) if getattr(one, "ndim", 0) == 4 else one
            for one in arguments
        )

    model.to(memory_format=torch.channels_last)
    hook = model.register_forward_pre_hook(to_channels_last)
    try:
        yield
    finally:
        hook.remove()
        model.to(memory_format=torch.contiguous_format)
