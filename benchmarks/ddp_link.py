"""DistributedDataParallel over an emulated link, beside the trace without it that is to predict it.

    python benchmarks/ddp_link.py -o validation/ddp_link      about six minutes; alone on the machine

One process, world size 1, the real DistributedDataParallel: its buckets, copies and overlap. A
communication hook hands each bucket to a link that completes it after latency + bytes / bandwidth,
one bucket behind the other. So any bandwidth can be had on one machine, and no second process
takes part of it. The method is that of `recordings.py`; the page is written from the traces alone.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from recordings import Change, Step, main, measured, record
from sections import write_section

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"
ROUNDS, BLOCK_STEPS, BLOCK_NS = 6, 3, 120e6
LINKS = {2.0: 100.0, 0.5: 100.0, 0.1: 1000.0}  # GB/s: latency of an all-reduce in us
CAPS = (25.0, 4.0, 1.0)  # MB, `bucket_cap_mb`
MODELS = ("GPT", "MLP", "CNN")


def changes() -> dict[str, tuple[float, float, float, Change]]:
    """Return what is made of a step: GB/s, us and cap, and what predicts it.

    A ring of two has two steps that pass on half of the bytes each: the link's own time.
    """
    return {
        f"DDP, {bandwidth:g} GB/s, cap {cap:g} MB": (
            bandwidth, latency, cap,
            ("ddp", {"workers": 2, "bandwidth": bandwidth, "latency_us": latency / 2, "bucket_mb": cap}),
        )
        for bandwidth, latency in LINKS.items() for cap in CAPS
    }  # fmt: skip


class Link:
    """Completes futures one behind the other, each after latency + bytes / bandwidth."""

    def __init__(self, bandwidth: float, latency_us: float) -> None:
        self.bandwidth, self.latency = bandwidth * 1e9, latency_us / 1e6
        self.sent: queue.SimpleQueue[tuple[Any, Any, float]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, buffer: Any) -> Any:
        """Return a future of the bytes that are handed to the link now."""
        import torch

        future: Any = torch.futures.Future()
        self.sent.put((future, buffer, time.perf_counter()))
        return future

    def _run(self) -> None:
        free = 0.0
        while True:
            future, buffer, sent = self.sent.get()
            free = max(free, sent) + self.latency + buffer.nbytes / self.bandwidth
            time.sleep(max(0.0, free - time.perf_counter()))
            future.set_result(buffer)


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step without DDP; return the measured ratio of each link and cap."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    base = _step(name)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    made = changes()
    linked = {title: _step(name, cap, Link(*link)) for title, (*link, cap, _) in made.items()}
    # Before the trace: a process that holds more memory gives less of it back, and has fewer page faults.
    for step in linked.values():
        step()
    recorded_ms = record(base, path)
    one = measured(
        {"base": base, "again": base, **linked}, {title: change for title, (*_, change) in made.items()},
        rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS,
    )  # fmt: skip
    distributed.destroy_process_group()
    # A link takes as long however fast the machine is, so its ratio holds at one speed only.
    return {"speed": round(one["step_ms"] / recorded_ms, 4), **one}


def _step(name: str, cap: float | None = None, link: Link | None = None) -> Step:
    """Return a training step of a model of its own, wrapped if there is a link."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, loss = _model(name)
    if link is not None:
        model = DistributedDataParallel(model, bucket_cap_mb=cap)
        model.register_comm_hook(None, lambda _, bucket: link.send(bucket.buffer()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def _model(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a model of about 14 MB of parameters, and its loss."""
    import torch
    from small_models import GPT, WORDS, Pooled, Residual
    from torch import nn
    from torch.nn import functional

    if name == "GPT":
        tokens, words = torch.randint(WORDS, (4, 64)), torch.randint(WORDS, (4 * 64,))
        model = GPT(layers=4, width=256, heads=4, context=64)
        return model, lambda model: functional.cross_entropy(model(tokens).flatten(0, 1), words)
    if name == "MLP":
        body = [part for _ in range(6) for part in (nn.Linear(768, 768), nn.ReLU())]
        x, y = torch.randn(128, 768), torch.randint(10, (128,))
        mlp = nn.Sequential(*body, nn.Linear(768, 10))
        return mlp, lambda model: functional.cross_entropy(model(x), y)
    images, y = torch.randn(2, 3, 8, 8), torch.randint(10, (2,))
    residual = [nn.Conv2d(3, 128, 3, padding=1), *(Residual(128) for _ in range(12))]
    cnn = nn.Sequential(*residual, Pooled(), nn.Linear(128, 10))
    return cnn, lambda model: functional.cross_entropy(model(images), y)


def page(folder: Path) -> list[str]:
    """Return the section of the page: every measured step, predicted from its recording's trace."""
    import daydream

    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for model, recordings in document["recordings"].items():
        for recording in recordings:
            replay = daydream.replay(folder / recording["trace"])
            for title, change in recording["changes"].items():
                comparison = daydream.whatif(replay, change["optimization"], **change["options"])
                plain = comparison.unprofiled or comparison
                known = comparison.anchored or plain
                ratios = (one.predicted_ns / one.replayed_ns for one in (known, plain))
                rows.setdefault((model, title), []).append((change["measured"], *ratios))
    made, table = changes(), []
    errors: list[list[list[float]]] = [[], []]  # of the two ways to predict, row by row
    for (model, title), found in rows.items():
        bandwidth, latency, cap, _ = made[title]
        real, *predicted = (list(column) for column in zip(*found, strict=True))
        cells = []
        for way, ratios in enumerate(predicted):
            errors[way].append([ratio / was - 1 for ratio, was in zip(ratios, real, strict=True)])
            low, high = min(errors[way][-1]), max(errors[way][-1])
            cells += [f"{median(ratios):.3f}", f"{median(errors[way][-1]):+.1%} ({low:+.1%} to {high:+.1%})"]
        link = f"{bandwidth:g} GB/s, {latency / 1000:g} ms"
        table.append(f"| {model} | {link} | {cap:g} | {median(real):.3f} | {' | '.join(cells)} |")
    counts = {model: len(recordings) for model, recordings in document["recordings"].items()}
    of_each = ", ".join(f"{count} of {model}" for model, count in counts.items())
    said = (
        f"{document['machine']}. Recordings, each in a process of its own: {of_each}; "
        f"{sum(document['left_out'].values())} left out, as the unchanged step differed from itself by more "
        "than 5 %, or by more than 10 % from what it took when it was recorded. Steps with DDP over the step "
        "without, medians of the recordings; errors of the predicted step, least and most in brackets. "
        "*Predicted*: in steps as long as the trace timed them without a profiler (anchored). "
        "*Not anchored*: over the step as replayed without the profiler's cost. The CNN's is replayed a "
        "quarter too long: under the profiler it has four times the page faults, which daydream does not "
        "count as recording. Anchoring of this kind came after the first look at these rows; nothing in "
        "it is fitted."
    )
    head = [
        "| model | link | cap MB | measured | predicted | error | not anchored | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return [
        said,
        "",
        _summary("Predicted", errors[0]),
        _summary("Not anchored", errors[1]),
        "",
        *head,
        *table,
    ]


def _summary(way: str, errors: list[list[float]]) -> str:
    of_rows = [abs(median(row)) for row in errors]
    of_all = [abs(error) for row in errors for error in row]
    return (
        f"{way}: median error of the rows {median(of_rows):.1%}, worst {max(of_rows):.1%}; "
        f"of single recordings {median(of_all):.1%} and {max(of_all):.1%}."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--page"]:
        write_section(PAGE, "ddp over an emulated link", page(Path(sys.argv[2])))
    else:
        written = main(__doc__, __file__, MODELS, recording)
        if written is not None:
            write_section(PAGE, "ddp over an emulated link", page(written))
