"""The real change behind a named optimization: its file's `apply` or `tool`, in the process that trains."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError
from daydream.transforms.compose import arguments
from daydream.transforms.registry import Optimization, find

if TYPE_CHECKING:
    from daydream.instrument import Tool

TARGETS = ("model", "optimizer")  # what `apply` is called with; options of these names are the prediction's


@contextmanager
def real_change(
    names: Sequence[str], options: Mapping[str, Any], optimizers: Sequence[Any]
) -> Iterator[Callable[[], list[str]] | None]:
    """Make the changes of these optimizations to the models that these `torch.optim` optimizers update.

    A file's `apply` is entered once for each optimizer; tools, which see all operators of the process, are
    applied together.

    Yields:
        A function that returns the names of the forward operators which tools act on, `aten::gelu`, so far;
        None where there are no tools.

    Raises:
        DaydreamError: one of them cannot be made for real.
    """
    found = [find(name) for name in names]
    targets = [(model_of(optimizer), optimizer) for optimizer in optimizers] or [(None, None)]
    _, own = arguments(found, options)
    tools: list[Tool] = []
    with ExitStack() as made:
        for optimization in found:
            if not optimization.can_be_made:
                raise DaydreamError(
                    f"{optimization.name} has neither `apply` nor `tool`: it can be predicted, not confirmed"
                )
            chosen = {name: value for name, value in own[optimization.name].items() if name not in TARGETS}
            if optimization.apply is not None:
                for model, optimizer in targets:
                    made.enter_context(optimization.apply(model, optimizer, **chosen))
            else:
                tools += tools_of(optimization, chosen)
        if not tools:
            yield None
            return
        from daydream.instrument import apply

        session = made.enter_context(apply(*tools))
        yield lambda: _changed(session.contexts)


def tools_of(optimization: Optimization, options: Mapping[str, Any]) -> list[Tool]:
    """Return the tools of an optimization; what makes them is called with those options that it takes.

    Raises:
        DaydreamError: what the file calls `tool` is not a tool, and does not return one.
    """
    from daydream.instrument import Tool

    made = optimization.tool
    if callable(made) and not isinstance(made, Tool):
        parameters = inspect.signature(made).parameters
        every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        made = made(**{name: value for name, value in options.items() if every or name in parameters})
    tools = list(made) if isinstance(made, (list, tuple)) else [made]
    if not tools or not all(isinstance(each, Tool) for each in tools):
        raise DaydreamError(
            f"`tool` of {optimization.name} gives {made!r}; it must be a daydream.instrument.Tool, "
            "or a class or function that returns one or several"
        )
    return tools


def _changed(contexts: Mapping[str, Any]) -> list[str]:
    """Return the forward operators that have actions, those within whose backward pass there are any too."""
    found = set()
    for context in contexts.values():
        if not (context.actions.on_operator or context.actions.on_node):
            continue
        forward = contexts.get(context.get("forward_id") or "", context)
        found.add(f"{forward['namespace']}::{forward['type']}")
    return sorted(found)


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
