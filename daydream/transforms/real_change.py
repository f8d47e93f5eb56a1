"""A change as a training script makes it: its line of code, whether this script can have it, and making it.

An optimization's own file holds the line for torch (`CODE`) and makes the change in a process that trains
(`apply` or `tool`). For JAX the lines are in `daydream.optimizations`; where JAX has none (its compiler fuses
kernels and updates by itself), no line is better than one of torch.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from daydream.costs.devices import device_properties
from daydream.errors import DaydreamError
from daydream.graph.calls import has_device_work
from daydream.graph.graph import Graph
from daydream.model.optimizers import torch_optimizers
from daydream.transforms.compose import arguments, parse
from daydream.transforms.registry import Optimization, Options, find

OPTIMIZER = re.compile(
    r"torch\.optim\.\w+\((.*?)\)(  # or .*)?$"
)  # in a line of code, whatever the class


def code_of(name: str, graph: Graph | None = None) -> str | None:
    """Return the lines of a training script that make a change, `amp` or `amp+compile`; None if none does.

    They are in the framework of the recorded program, with its own optimizer; without a graph in torch.
    """
    try:
        return lines_of(parse(name), graph)
    except DaydreamError:  # a function that was given as it is, and has no file
        return None


def lines_of(optimizations: Sequence[Optimization], graph: Graph | None = None) -> str | None:
    """Return the lines that make changes together in the script that was recorded; None if one has none."""
    lines = dict[str, None]()
    for optimization in optimizations:
        code = optimization.code
        if graph is None:
            pass
        elif graph.recorded.metadata.get("profiler") == "jax":
            from daydream.optimizations import IN_JAX

            code = IN_JAX.get(optimization.name, "")
        elif "train_step(" in code:
            if not len(graph.select(phase=("backward", "optimizer"))):
                code = code.replace("train_step(", "model(")
        elif "torch.bfloat16" in code:
            if (device_properties(graph).get("compute_major") or 8) < 8:  # no units for bfloat16
                code = code.replace("torch.bfloat16", "torch.float16")
        elif OPTIMIZER.search(code):
            optimizers = torch_optimizers(graph)
            if len(optimizers) == 1:
                code = OPTIMIZER.sub(rf"torch.optim.{optimizers.pop()}(\1)", code)
        lines[code] = None
    return "; ".join(lines) if lines and all(lines) else None


def why_not_offered(optimization: Optimization, graph: Graph) -> str | None:
    """Return why a change is nothing that the recorded script can have, None if it can.

    The file of an optimization says what its line of code needs (`NEEDS_GPU`, `OPTIMIZERS`), and that no
    framework makes the change (`PAPER_ONLY`).
    """
    if optimization.paper_only:
        return (
            "no framework makes this change: it is a paper's; `whatif` and `rank --all` predict it"
        )
    if optimization.needs_gpu and not has_device_work(graph):
        return f"`{optimization.code}` is for a GPU, and this trace has no GPU work"
    optimizers = torch_optimizers(graph) if optimization.optimizers else set()
    if optimizers and not optimizers & optimization.optimizers:
        return f"`{optimization.code}` is for another optimizer than {' and '.join(sorted(optimizers))}"
    return None


@contextmanager
def real_change(
    names: Sequence[str], options: Options, optimizers: Sequence[Any]
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
    tools = []
    with ExitStack() as made:
        for optimization in found:
            if not optimization.can_be_made:
                raise DaydreamError(
                    f"{optimization.name} has neither `apply` nor `tool`: it can be predicted, not confirmed"
                )
            chosen = {
                name: value
                for name, value in own[optimization.name].items()
                if name not in ("model", "optimizer")
            }
            if optimization.apply is not None:
                for model, optimizer in targets:
                    made.enter_context(optimization.apply(model, optimizer, **chosen))
            else:
                from daydream.instrument.tool import tools_of

                tools += tools_of(optimization.tool, optimization.name, chosen)
        if not tools:
            yield None
            return
        from daydream.instrument import apply

        yield made.enter_context(apply(*tools)).changed_operators


def model_of(optimizer: Any) -> Any:
    """Return the outermost module that holds the parameters of an optimizer, None if there is none.

    Of several, wrappers like `DistributedDataParallel` around one another, the outermost.
    """
    import torch

    wanted = {id(one) for group in optimizer.param_groups for one in group["params"]}
    holding = []
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.Module):
            held = sum(id(parameter) in wanted for parameter in one.parameters())
            if held:
                holding.append((held, sum(1 for _ in one.modules()), one))
    return max(holding, key=lambda each: each[:2], default=(0, 0, None))[2]
