"""`daydream plan`: which strategy fits many GPUs and is fastest, for a script or from the trace of one GPU."""

from __future__ import annotations

from typing import Any, Literal

import click

from daydream.cli.commands import NUMBER, SOME, Parsed, command
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, usage_error, working
from daydream.cli.sweep import values_of, workers_of
from daydream.plan.search import AXES, CHOICES, SHOWN, By
from daydream.text import counted


def _limit(text: str) -> tuple[str, list[Any]]:
    axis, _, values = text.partition("=")
    axis = axis.replace("-", "_")
    if axis not in AXES or not values:
        raise ValueError(f"{text!r} is not AXIS=VALUE,... with one of {', '.join(AXES)}")
    return axis, values_of(values, bool if type(CHOICES.get(axis, [1])[0]) is bool else int)


@command(
    click.Argument(["asked"], nargs=-1, metavar="SCRIPT|TRACE [-- ARGS...]"),
    "verbose",
    "html",
    "force",
    types={
        "gpus": Parsed(workers_of),
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
    gpus: Any = None,
    batch: int | None = None,
    cluster: str | None = None,
    only: Literal["checkpointing"] | None = None,
    trace: str | None = None,
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
    daydream plan --only checkpointing --capacity 24GB one_gpu.parquet
    daydream plan one_gpu.parquet --gpus 8,16,32 --cluster p5 --batch 512 --by cost

    A script never runs on data: its operators are emulated, once for each tp, ep, cp and micro-batch,
    and pipelines, data parallelism, accumulation and checkpointing are composed from its blocks. From
    the trace of one GPU tp, ep, cp and other micro-batches are not predicted.

    Args:
        gpus (LIST): Numbers of GPUs: 64, or 8,16,...,128.
        batch: Samples of a step, the same for all strategies [default: as many for each GPU as now].
        only: Choose which blocks of a trace to checkpoint or offload so that it fits --capacity.
        trace (TRACE): TRACE by name.
        cluster (NAME): Machines, such as dgx-h100, or a file.
        emulate (GPU): GPU of a script, such as h100 [default: that of the cluster].
        capacity (SIZE): Memory of a GPU, such as 80GB [default: what the GPU has].
        set_ (AXIS=HOW): How the script takes tp, ep, cp, micro_batch: tp=--tensor-parallel (argument), tp=TP
            (variable of the environment); or the name of a function in it that gets them all by
            name and returns arguments. layers=--layers emulates two of them. May be repeated.
        limit (AXIS=VALUES): Try these values alone: tp=1,2,4 or checkpointing=no. May be repeated.
        by: What the best has least of.
        price (DOLLARS): For an hour of a GPU; needs --tokens.
        tokens (N): Of the whole training, for hours and dollars.
        top: Rows to show.
    """
    from daydream.plan import jobs, search
    from daydream.plan.checkpointing import choose_blocks

    out.check_files()
    paths = [*asked, *filter(None, [trace])]
    if not paths:
        raise usage_error("name a training script, or the trace of one GPU")
    if only:
        if capacity is None:
            raise usage_error("--only needs --capacity")
        with working() as progress:
            replay = TraceRequest((paths[0],)).replay(progress)
            choice = choose_blocks(replay, capacity, progress=progress)
            written = out.write_files(choice, progress)
        out.answer(choice, {"trace": paths[0]}, written=written)
        return
    if gpus is None or cluster is None:
        raise usage_error("give --gpus and --cluster")
    if price is not None and tokens is None:
        raise usage_error("--price needs --tokens: of how much training")
    with working() as progress:
        if paths[0].endswith(".py"):
            job = jobs.of_script(paths, set_, cluster, emulate, (gpus[-1], batch or 0))
        elif len(paths) > 1 or emulate or set_:
            raise usage_error("--emulate, --set and arguments go with a training script")
        else:
            job = jobs.of_trace(TraceRequest((paths[0],)).replay(progress), cluster)
        if batch is None:
            batch = job.own.batch if job.own else gpus[-1] * job.limits["micro_batch"][0]
            job.notes.append(f"{counted(batch, 'sample')} a step, as many for each GPU as now.")
        found = search.plan(
            job,
            gpus,
            batch,
            capacity=capacity,
            by=by,
            limits=dict(limit),
            price=price,
            tokens=tokens,
            engine=engine,
            progress=progress,
        )
        written = out.write_files(found, progress)
    out.answer(found, {"trace": paths[0]}, written=written, top=top)
