"""The blocks of a model, from one micro-batch that ran on an emulated GPU in a fake world."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from daydream.costs.network.nccl import bytes_of_message
from daydream.world.compose import Block, Exchange, Pass
from daydream.world.emulate import Call, Emulation, observed
from daydream.world.emulate_costs import kernels_of
from daydream.world.process_group import ASKED, HEARD, WAITED, Asked

EXPERTS = "experts"  # in the name of a parameter that ranks of experts do not share


def recorded_blocks(
    gpu: Emulation,
    model: nn.Module,
    run: Callable[[], Any],
    layers: Sequence[str],
    launch_ns: float,
    groups: Mapping[str, tuple[str, int]],
) -> tuple[Block, ...]:
    """Return a block for each layer, one for what runs before them and one for what runs after them.

    Args:
        gpu: the emulated GPU.
        model: on it, with gradients.
        run: a forward and a backward pass over one micro-batch.
        layers: paths of the modules that are blocks, in their order.
        launch_ns: what the thread takes for an operator with a kernel.
        groups: dimension (`tp`, `cp`, `ep`) and size of each process group, by name; others are left out.
    """
    heard: list[tuple[int, int, Asked]] = []  # call that follows, number of the collective
    waits: dict[int, int] = {}  # number of the collective: call that follows the wait
    inputs = [0.0] * len(layers)

    @contextmanager
    def hear(asked: Asked) -> Iterator[None]:
        heard.append((len(gpu.calls), len(ASKED) - 1, asked))
        gpu.inside = True  # what moves values in this process moves none on a GPU
        try:
            yield
        finally:
            gpu.inside = False

    def enter(number: int) -> Callable[..., None]:
        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            inputs[number] = sum(one.nbytes for one in given if isinstance(one, Tensor))

        return note

    hooks = [
        model.get_submodule(path).register_forward_pre_hook(enter(number))
        for number, path in enumerate(layers)
    ]

    def wait(number: int) -> None:
        waits.setdefault(number, len(gpu.calls))

    HEARD.append(hear)
    WAITED.append(wait)
    try:
        calls = observed(gpu, run, model)
    finally:
        HEARD.remove(hear)
        WAITED.remove(wait)
        for hook in hooks:
            hook.remove()
    places = _places(calls, layers)
    spent: dict[tuple[int, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    exchanges: dict[tuple[int, bool], Counter[Exchange]] = defaultdict(Counter)
    took = [sum(kernel.duration_ns for kernel in kernels_of(call, gpu.device)) for call in calls]
    for own_ns, place in zip(took, places, strict=True):
        spent[place][0] += own_ns
        spent[place][1] += launch_ns * (own_ns > 0)
    for at, number, asked in heard:
        if asked.group in groups:
            group, members = groups[asked.group]
            size = bytes_of_message(asked.operation, asked.bytes, members)
            beside = sum(took[at : waits.get(number, at)])
            one = Exchange(group, asked.operation, size, 1, beside)
            exchanges[places[max(at - 1, 0)]][one] += 1

    def one_pass(place: int, *, backward: bool) -> Pass:
        found = exchanges[place, backward].items()
        gpu_ns, cpu_ns = spent[place, backward]
        return Pass(gpu_ns, cpu_ns, tuple(replace(one, count=times) for one, times in found))

    names = ["before", *layers, "after"]
    saved, workspace = _held(gpu, places, len(names))
    return tuple(
        Block(
            name,
            one_pass(place, backward=False),
            one_pass(place, backward=True),
            *_parameters(model, layers)[place],
            inputs[min(max(place - 1, 0), len(layers) - 1)],
            saved[place],
            workspace[place],
            is_layer=0 < place <= len(layers),
        )
        for place, name in enumerate(names)
    )


def _places(calls: Sequence[Call], layers: Sequence[str]) -> list[tuple[int, bool]]:
    """Return the block of each call, and whether it is of the backward pass.

    What is in no layer belongs before the first, after the last, or to the layer that ran before it.
    """
    found = []
    last = len(layers) + 1
    now, was_backward = 0, False
    for call in calls:
        backward = call.phase == "backward"
        if backward and not was_backward:
            now, was_backward = last, True
        within = [
            number
            for number, path in enumerate(layers, 1)
            if call.layer == path or call.layer.startswith(path + ".")
        ]
        if within:
            now = within[0]
        elif call.layer and now == (1 if backward else last - 1):
            now = 0 if backward else last
        found.append((now, backward))
    return found


def _held(
    gpu: Emulation, places: Sequence[tuple[int, bool]], count: int
) -> tuple[list[float], list[float]]:
    """Return what each block keeps for its backward pass, and what a pass of it holds besides at most; bytes."""
    changes: list[list[int]] = [
        [0, 0] for _ in range(len(places) + 1)
    ]  # freed before a call, given to it
    for at, nbytes, _ in gpu.memory:
        changes[min(at, len(places))][nbytes > 0] += nbytes
    saved, workspace = [0.0] * count, [0.0] * count
    now = start = high = 0
    before: tuple[int, bool] | None = None
    for (freed, given), here in zip(changes, [*places, (-1, False)], strict=True):
        now += freed
        if here != before:
            if before is not None:
                place, backward = before
                base = start if backward else max(start, now)
                workspace[place] = max(workspace[place], high - base)
                saved[place] += 0 if backward else now - start
            start, high, before = now, now, here
        now += given
        high = max(high, now)
    return saved, workspace


def _parameters(model: nn.Module, layers: Sequence[str]) -> list[tuple[float, float]]:
    """Return the elements of each block that are not of experts, and those that are."""
    plain, experts = ([0.0] * (len(layers) + 2) for _ in range(2))
    other = 0  # the block of what is in no layer
    for name, parameter in model.named_parameters():
        within = [at for at, path in enumerate(layers, 1) if name.startswith(path + ".")]
        other = len(layers) + 1 if within else other
        (experts if EXPERTS in name else plain)[within[0] if within else other] += parameter.numel()
    return list(zip(plain, experts, strict=True))
