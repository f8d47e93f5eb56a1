"""`daydream plan`: which strategy fits many GPUs and is fastest, for a script or from the trace of one GPU."""

from __future__ import annotations

from typing import Any

import click

from daydream.cli.commands import command
from daydream.cli.options import NUMBER, SOME, Parsed, numbers_of
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, usage_error, working
from daydream.plan.search import SHOWN, By
from daydream.plan.strategies import AXES


def _numbers(text: str) -> list[int]:
    from fractions import Fraction  # for those who type a list

    found = numbers_of(text, Fraction)
    if any(each.denominator > 1 or each < 1 for each in found):
        raise ValueError(f"{text!r} is not a list of whole numbers of 1 or more")
    return [int(each) for each in found]


def _limit(text: str) -> tuple[str, list[int | str]]:
    axis, _, values = text.partition("=")
    axis = axis.replace("-", "_")
    if axis not in AXES or not values:
        raise ValueError(f"{text!r} is not AXIS=VALUE,... with one of {', '.join(AXES)}")
    return axis, [int(each) if each.isdigit() else each for each in values.split(",")]


@command(
    click.Argument(["asked"], nargs=-1, metavar="SCRIPT|TRACE [-- ARGS...]"),
    "verbose",
    "html",
    "force",
    types={
        "gpus": Parsed(_numbers),
        "batch": SOME,
        "limit": Parsed(_limit),
        "price": NUMBER,
        "tokens": NUMBER,
        "top": SOME,
    },
)
def plan(
    asked: tuple[str, ...],
    out: Output,
    *,
    gpus: Any,
    batch: int,
    trace: str | None = None,
    cluster: str | None = None,
    emulate: str | None = None,
    capacity: int | None = None,
    set_: tuple[str, ...] = (),
    limit: tuple[Any, ...] = (),
    by: By = "time",
    price: float | None = None,
    tokens: float | None = None,
    engine: Any = "local",
    top: int = SHOWN,
) -> None:
    r"""Find the strategy of parallel training that fits and is fastest, or costs least.

    \b
    daydream plan train.py --gpus 64 --cluster dgx-h100 --batch 512 --set tp=--tensor-parallel
    daydream plan one_gpu.parquet --gpus 8,16,32 --batch 512 --price 2.5

    A script never runs on data: its operators are emulated, once for each tp, ep, cp and micro-batch,
    and pipelines, data parallelism, accumulation and checkpointing are composed from its blocks. From
    the trace of one GPU tp, ep, cp and other micro-batches are not predicted.

    Args:
        gpus (LIST): Numbers of GPUs: 64, or 8,16,...,128.
        batch: Samples of a step, the same for all strategies.
        trace (TRACE): TRACE by name.
        cluster (NAME): Machines, such as dgx-h100, or a file [default: those of the trace's GPU].
        emulate (GPU): GPU of a script, such as h100 [default: that of the cluster].
        capacity (SIZE): Memory of a GPU, such as 80GB [default: what the GPU has].
        set_ (AXIS=HOW): How the script takes tp, ep, cp, micro_batch: tp=--tensor-parallel (argument), tp=TP
            (variable of the environment); or the name of a function in it that gets them all by
            name and returns arguments. May be repeated.
        limit (AXIS=VALUES): Try these values alone: tp=1,2,4 or checkpointing=none. May be repeated.
        by: What the best has least of.
        price (DOLLARS): For an hour of a GPU.
        tokens (N): Of the whole training, for hours and dollars.
        top: Rows to show.
    """
    raise usage_error("not yet")
