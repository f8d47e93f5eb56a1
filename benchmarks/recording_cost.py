"""What `daydream collect` costs around a job of a few seconds, beside the job alone and torch.profiler's own.

    python benchmarks/recording_cost.py                             a table on stdout, about two minutes
    python benchmarks/recording_cost.py --write docs/evaluation  keeps the table as CSV

The job trains the GPT of `small_models.py` on one thread. torch.profiler records four of its steps with
shapes and memory and writes them as JSON; `collect` records as it does by default, without suggestions at
the end and with them. The four take turns, each in processes of their own. Times are CPU time of all
processes, which other programs on the machine change less than the clock's; memory is the largest sum of
what they held at one moment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from process_tree import watched

STEPS, ROUNDS = 300, 5
WAYS = {
    "alone": "the job alone",
    "again": "the job alone, again (A/A)",
    "profiler": "with torch.profiler, 4 steps to JSON",
    "collect": "with `daydream collect --no-suggestions`",
    "suggestions": "with `daydream collect`",
}


def main() -> None:
    """Run the ways in turns, print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--job", choices=("plain", "profiler"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        _job(profiled=options.job == "profiler")
        return
    if len(sys.argv) == 1 and os.environ.get("DAYDREAM_BENCHMARK_JOB"):
        _job(profiled=False)
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
            found[way].append(_measured(way))
            print(way, found[way][-1], file=sys.stderr, flush=True)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation"))
    from tables import keep

    keep(options.write, "recording cost", [_table(found)])


def _measured(way: str) -> dict[str, float]:
    """Return CPU seconds, seconds and peak bytes of one run."""
    import resource

    words = [sys.executable, __file__]
    if way in {"alone", "again", "profiler"}:
        words += ["--job", "profiler" if way == "profiler" else "plain"]
    with tempfile.TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        if way in {"collect", "suggestions"}:
            less = ["--no-suggestions"] if way == "collect" else []
            words = [
                sys.executable,
                "-m",
                "daydream",
                "collect",
                "-o",
                f"{folder}/t.parquet",
                *less,
                __file__,
            ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DAYDREAM_BENCHMARK_JOB": "1", "TMPDIR": folder}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            with watched(process.pid) as most:
                process.wait()
            if process.returncode:
                raise RuntimeError(f"{way}: exit code {process.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "seconds": time.perf_counter() - began, "peak": most[0]}


def _job(*, profiled: bool) -> None:
    """Train for a few seconds."""
    import torch
    from small_models import MODELS

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model, loss = MODELS["GPT"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    profiler: Any = None
    if profiled:
        from torch.profiler import ProfilerActivity, profile, schedule

        path = str(Path(tempfile.gettempdir(), "profile.json"))
        profiler = profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=4, warmup=1, active=4, repeat=1),
            record_shapes=True, profile_memory=True,
            on_trace_ready=lambda done: done.export_chrome_trace(path),
        )  # fmt: skip
        profiler.start()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if profiler is not None:
            profiler.step()
    if profiler is not None:
        profiler.stop()


def _table(found: dict[str, list[dict[str, float]]]) -> str:
    alone = [one["cpu_s"] for one in found["alone"]]
    about = (
        f"Made by `python benchmarks/recording_cost.py`: {STEPS} steps of the small GPT, medians of "
        f"{len(alone)} rounds in turns, with the least and the most of what is more than the job alone."
    )
    lines = [
        about,
        "",
        "| job | CPU s | more than alone, CPU s | peak memory, MB | / torch.profiler's |",
        "|---|---|---|---|---|",
    ]
    peaks = {way: median(one["peak"] for one in rounds) for way, rounds in found.items()}
    for way, rounds in found.items():
        more = [one["cpu_s"] - base for one, base in zip(rounds, alone, strict=True)]
        told = "-" if way == "alone" else f"{median(more):+.1f} ({min(more):+.1f} .. {max(more):+.1f})"
        lines.append(
            f"| {WAYS[way]} | {median(one['cpu_s'] for one in rounds):.1f} | {told} "
            f"| {peaks[way] / 1e6:.0f} | {peaks[way] / peaks['profiler']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
