"""The real change behind a named optimization: its file's `apply`, entered in the process that trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from daydream.errors import DaydreamError
from daydream.transforms.compose import arguments
from daydream.transforms.registry import find

TARGETS = ("model", "optimizer")  # what `apply` is called with; options of these names are the prediction's


@contextmanager
def real_change(
    names: Sequence[str], options: Mapping[str, Any], optimizers: Sequence[Any]
) -> Iterator[None]:
    """Make the changes of these optimizations to the models that these `torch.optim` optimizers update.

    Raises `DaydreamError` if one of them cannot be made for real.
    """
    found = [find(name) for name in names]
    targets = [(model_of(optimizer), optimizer) for optimizer in optimizers] or [(None, None)]
    _, own = arguments(found, options)
    with ExitStack() as made:
        for optimization in found:
            if optimization.apply is None:
                raise DaydreamError(f"{optimization.name} has no `apply`: it can be predicted, not confirmed")
            chosen = {name: value for name, value in own[optimization.name].items() if name not in TARGETS}
            for model, optimizer in targets:
                made.enter_context(optimization.apply(model, optimizer, **chosen))
        yield


def model_of(optimizer: Any) -> Any:
    """Return the outermost module that holds the parameters of an optimizer, None if there is none.

    Of several, wrappers like `DistributedDataParallel` around one another, the outermost.
    """
    import torch

    wanted = {id(one) for group in optimizer.param_groups for one in group["params"]}
    holding: list[tuple[int, int, Any]] = []
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.Module):
            held = sum(id(parameter) in wanted for parameter in one.parameters())
            if held:
                holding.append((held, sum(1 for _ in one.modules()), one))
    return max(holding, key=lambda each: each[:2], default=(0, 0, None))[2]
