"""`daydream collect`, `import` and `example`: from a script or a profiler's file to a trace.

`collect` ends with the largest suggestions for the trace, a ranking in a process of its own. Neither the trace nor
the exit code depends on it: what fails, or takes too long, is left out.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from daydream.cli.commands import COUNTS, Parsed, command, refused
from daydream.cli.output import Output, trace_name, wrote
from daydream.cli.source import Script, TraceRequest, usage_error, working
from daydream.errors import DaydreamError, GraphError
from daydream.report.blocks import printable, step_change_text

PATIENCE_S = 8.0  # reading a trace and predicting some fifty changes takes one or two
MOST = 3
TIMES = ("replayed_ns", "predicted_ns", "speedup_low", "speedup_high")
NEEDS_MORE = ("other hardware", "more GPUs")  # no change of the script alone


@dataclass(frozen=True)
class Suggestions:
    """What would shorten the step most, each as `rank --json` has it; or why that is not known."""

    entries: tuple[dict[str, Any], ...] = ()
    missing: str | None = None

    def lines(self, path: Path) -> list[str]:
        """Return what to print: each suggestion, and below it the code that makes the change."""
        again = f"daydream rank {printable(shlex.quote(str(path)))}"
        if self.missing is not None:
            return [f"no suggestions: {self.missing}; run {again}"]
        if not self.entries:
            return [f"no code change is predicted to shorten this step; see why: {again}"]
        lines = ["top suggestions, predicted from this trace:"]
        for each in self.entries:
            step = step_change_text(*(each[key] for key in TIMES))
            lines.append(f"  {printable(each['optimization'])}: {step}")
            lines.append(f"      {printable(each['code'])}")
        return lines


def suggestions(path: Path, *, patience_s: float = PATIENCE_S) -> Suggestions:
    """Return the largest suggestions for a trace; never raises, and takes no longer than the patience."""
    words = ["rank", "--trace", str(path.resolve()), "--json", "--no-curves", "--pairs", "0"]
    # Modules are looked for where this process finds them: not in the current folder, if not there too.
    code = f"import sys; sys.path[:] = {sys.path!r}; from daydream.cli import main; main({words!r})"
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience_s,
        )
        if not done.returncode:
            return Suggestions(tuple(_largest(json.loads(done.stdout)["changes"])))
        first = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        reason = first.removeprefix("error: ") or f"exit code {done.returncode}"
        return Suggestions(missing=f"ranking failed ({printable(reason)})")
    except subprocess.TimeoutExpired:
        return Suggestions(missing=f"ranking took longer than {patience_s:g} s")
    except KeyboardInterrupt:
        return Suggestions(missing="interrupted")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Suggestions(missing=f"ranking failed ({type(error).__name__})")


def _largest(ranked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first that a line of code makes, of those that the same line makes one."""
    found: dict[str, dict[str, Any]] = {}
    for each in ranked:
        if (each["saving_ns"] or 0) > 0 and each["code"] and each["needs"] not in NEEDS_MORE:
            found.setdefault(each["code"], each)
    return list(found.values())[:MOST]


SIGNALED = 128  # and the signal's number: the exit code of what a signal ended
WITH_WORLD = "--rank, --cluster, --all-stages and --imbalance go with --world"
NOT_PARQUET = (".json", ".gz", ".sqlite", ".db", ".etdp")


@command("output", "force", "nproc_per_node", types=COUNTS)
def collect(
    out: Output,
    script: Script,
    *,
    steps: int = 3,
    warmup: int = 5,
    stop_after: bool = False,
    with_stack: bool = False,
    memory: bool = True,
    world: int | None = None,
    rank: int = 0,
    cluster: str | None = None,
    all_stages: bool = False,
    imbalance: float = 1.0,
    emulate: str | None = None,
    cpu: tuple[str, ...] = (),
    no_suggestions: bool = False,
) -> int:
    r"""Run a training script, unmodified, and record a few of its steps.

    \b
    daydream collect train.py --epochs 1
    daydream collect -o run.parquet -m package.train --epochs 1
    daydream collect --nproc-per-node 2 train.py
    daydream collect --world 64 --cluster dgx-h100 train.py
    daydream collect --emulate h100 train.py

    Options of `collect` come before the script, everything after it is the script's own. The first
    steps are skipped, the next ones timed without a profiler, then a few are captured, and the script
    goes on unchanged. Its exit code is passed on. At the end the three most promising changes are
    printed, with the code that makes them.

    Args:
        output (FILE): Where to write [default: the script's name, .parquet].
        steps: Steps to capture.
        warmup: Steps to skip first.
        stop_after: End the script when the steps are captured.
        with_stack: Record Python functions, for `explain`; steps take longer.
        memory: Record allocations and frees.
        world: Run the script as one rank of N that do not exist: how will the job of N run?
        rank: Which one.
        cluster (NAME): Machines of that job, such as dgx-h100, or a file.
        all_stages: Record a rank of each stage of its pipeline in turn: one trace, joined by their messages.
        imbalance: The tokens that this rank's experts get, as a multiple of the mean.
        emulate (NAME): Run the script without a GPU, and record what this one, such as h100, would run.
        cpu (CPU): What launches its kernels, with --emulate: slow, typical, fast, or TRACEs of its machine.
        no_suggestions: Do not predict at the end what would speed up the step.
    """
    from daydream.collect.launcher.runner import Recording

    script.check()
    fake_world = None
    if world is not None:
        fake_world = _world_of(script, world, rank, cluster, imbalance)
    elif rank or cluster or all_stages or imbalance != 1:
        raise usage_error(WITH_WORLD)
    if cpu and not emulate:
        raise usage_error("--cpu goes with --emulate")
    if emulate and script.nproc_per_node:
        raise usage_error("--emulate and --nproc-per-node exclude each other; use --world")
    target = script.target
    stem = target.rpartition(".")[2] if script.module else Path(target).resolve().stem
    path = Path(out.output or f"{stem}.parquet")
    path = path / f"{stem}.parquet" if path.is_dir() else path
    out.check(path)
    recording = Recording(
        steps=steps, warmup=warmup, stop_after=stop_after, with_stack=with_stack, memory=memory,
        fake_world=fake_world, emulated=_emulated(emulate, cpu) if emulate else None,
    )  # fmt: skip
    record = partial(script.record, force=out.force, own_stdout=out.as_json, kept=not all_stages)
    if all_stages:
        from daydream.world.stages import record_stages

        record = partial(record_stages, record, force=out.force)
    done = record(path, recording)
    result: dict[str, Any] = {
        "trace": None if done.path is None else str(done.path),
        "exit_code": done.exit_code,
        "problems": done.problems,
    }
    if done.path is None:
        out.emit(result)
        return done.exit_code or DaydreamError.exit_code
    unrest = None
    # The replay is kept in the user's cache: the suggestions, and the first question, need it.
    with (
        contextlib.suppress(GraphError),
        working() as progress,
    ):  # no step to judge; `info` tells why
        unrest = TraceRequest((str(done.path),)).replay(progress).unrest
    if unrest:
        click.echo(f"note: {unrest}", err=True)
    found = None
    if (
        not (no_suggestions or (fake_world and not cluster)) and done.exit_code <= SIGNALED
    ):  # else somebody wants to be done
        found = suggestions(done.path)
    lines = wrote(done.path)
    if out.as_json:
        from daydream.trace.trace import Trace

        result |= _about(Trace.load(done.path), done.path)
        result["notes"] += filter(None, [unrest])
        result["suggestions"] = None if found is None else list(found.entries)
    elif found is not None:
        lines += found.lines(done.path)
    out.emit(
        result,
        written=lines,
        then=["info", str(done.path)],
    )
    return done.exit_code


def _world_of(
    script: Script, world: int, rank: int, cluster: str | None, imbalance: float
) -> dict[str, Any]:
    """Return the place in a fake world that options ask for."""
    if script.nproc_per_node:
        raise usage_error("--world and --nproc-per-node exclude each other")
    if not 0 <= rank < world:
        raise usage_error(
            f"--rank is {rank}, but a world of {world:,} has ranks 0 to {world - 1:,}"
        )
    if cluster:
        from daydream.costs.network.cluster_names import find_cluster

        with refused():
            find_cluster(cluster).holding(world)
    if imbalance < 1:
        raise usage_error(f"--imbalance is {imbalance:g}; it is 1, balanced, or more")
    return {"world_size": world, "rank": rank, "cluster": cluster, "imbalance": imbalance}


def _emulated(gpu: str, cpu: Sequence[str]) -> dict[str, Any]:
    """Return the GPU and the CPU that options ask to emulate."""
    from daydream.world.cpu import find_cpu

    with working() as progress:
        found = find_cpu(cpu, lambda trace: TraceRequest((trace,)).replay(progress))
    return {"device": gpu, "cpu": found}


def _about(trace: Any, path: Path) -> dict[str, Any]:
    """Return what JSON tells of a trace that was written."""
    steps = trace.metadata.get("steps", [])
    return {
        "rows": len(trace),
        "ranks": sorted({step.get("rank", 0) for step in steps}),
        "steps": len(steps),
        "covered": sum(bool(step.get("covered")) for step in steps),
        "bytes": path.stat().st_size,
        "notes": trace.metadata.get("notes", []),
    }


# Import --------------------------------------------------------------------------------------------


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(rank) for rank in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of ranks such as 0,1,4") from None


@command(
    click.Argument(["traces"], nargs=-1, required=True, metavar="SOURCE..."),
    "output",
    "force",
    types={"ranks": Parsed(_ranks)},
)
def import_(
    request: TraceRequest,
    out: Output,
    *,
    ranks: Any = None,
    etrecord: str | None = None,
    engine: Any = "local",
) -> None:
    """Import a profiler's recording as a small parquet trace.

    SOURCE is Kineto JSON from torch.profiler (.json, .json.gz), an Nsight Systems export (.sqlite,
    .sqlite.gz), a rocprofv3 database (.db), a JAX profile (.xplane.pb), or an ExecuTorch ETDump
    (.etdp) or table of its Inspector (.json, .parquet). Several files, or a folder of them, are the
    ranks of one job, which --engine reads side by side. Only named fields are copied: environment
    dumps and the like are left out.

    Args:
        output (FILE): Where to write [default: the source's name, .parquet].
        ranks (LIST): Ranks of the files in their order: 0,1,4.
        etrecord (FILE): ETRecord of an ETDump's program: layers and operators.
    """
    from daydream.report.info import rows_by_kind
    from daydream.report.views.nouns import imported

    if out.output is not None and out.output.endswith(NOT_PARQUET):
        text = "the output is a parquet trace; name it .parquet"
        raise click.BadParameter(text, click.get_current_context(), param_hint="-o")
    target = Path(out.output or trace_name(request.traces))
    if target.is_dir():
        target = target / trace_name(request.traces)
    out.check(target)
    with working() as progress:
        trace = request.load(
            progress,
            keep=False,
            ranks=ranks,
            engine=engine,
            etrecord=etrecord,
        )
        progress(f"writing {target}")
        trace.save(target, force=out.force)
    kinds = rows_by_kind(trace)
    about = _about(trace, target)
    result = {
        "trace": str(target),
        "source": trace.metadata.get("source"),
        "rows": about.pop("rows"),
        "rows_by_kind": kinds,
        "ranks": about.pop("ranks"),
        "step_source": trace.metadata.get("step_source"),
        **about,
    }
    out.emit(
        result,
        lambda: imported(trace, kinds),
        written=wrote(target),
        then=["info", str(target)],
    )


# Examples ------------------------------------------------------------------------------------------

PACKAGE = "daydream.examples"
GPU = "synthetic_gpt_gpu.json.gz"
EXAMPLES = {  # file -> what it is, and the command to try with it
    GPU: ("training of a small GPT, on a made-up GPU", "rank {}"),
    "train_gpt_h200.parquet": ("training of a GPT, recorded on an H200", "whatif amp {}"),
    "mlp_cpu.json.gz": ("training of a perceptron, recorded on a CPU", "explain {}"),
    "my_optimization.py": ("an optimization of your own", f"whatif ./{{}} {GPU}"),
    "train_gpt.py": ("a small GPT on random tokens, to record with torch", "collect {}"),
    "train_cnn.py": ("a small network with a data loader, to record", "collect {}"),
    "train_ddp.py": ("a perceptron on two ranks, to record", "collect --nproc-per-node 2 {}"),
}


@command(click.Argument(["name"], required=False), "output", "force")
def example(out: Output, name: str | None) -> None:
    """Write one of the example traces or scripts, or list them.

    NAME is one of the list; the file is written to the current folder. No network is needed.

    Args:
        output (FILE): Where to write [default: NAME, here].
    """
    from importlib.resources import files

    from daydream.files.atomic import write_whole

    if name is None:
        entries = [{"name": each, "what": what} for each, (what, _) in EXAMPLES.items()]
        width = max(map(len, EXAMPLES))
        lines = [f"  {each:<{width}}  {what}" for each, (what, _) in EXAMPLES.items()]
        out.emit(
            {"examples": entries},
            lambda: "\n".join(lines),
            then=["example", GPU],
        )
        return
    if name not in EXAMPLES:
        raise DaydreamError(f"unknown example {name!r}; choose {', '.join(EXAMPLES)}")
    target = Path(out.output or name)
    if target.is_dir():
        target = target / name
    content = (files(PACKAGE) / name).read_bytes()
    write_whole(
        target,
        lambda temporary: Path(temporary).write_bytes(content),
        force=out.force,
    )
    out.emit(
        {"example": name, "path": str(target), "bytes": len(content)},
        written=wrote(target),
        then=[word.format(target) for word in EXAMPLES[name][1].split()],
    )
