"""The parts of a prediction, each judged by itself: collectives, contention, kernels at another size.

Tables of `evaluate.py`. Nothing is fitted to what is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

import daydream
from daydream.costs import retime, work
from daydream.costs.contention import Compared, measured_contention
from daydream.costs.network.cluster_names import find_cluster
from daydream.graph.selection import Selection

Table = tuple[str, list[dict[str, str]]]
MIB = 1 << 20
SHOWN_MIB, LONG_BYTES, GPUS, MACHINE = (1, 8, 25, 1024), 8_000_000, (2, 4, 8), "dgx-a100"
SEVERAL = (  # recordings of several ranks
    "kineto/a100_resnet_ddp_rank0of2.json.gz", "kineto/v100_recsys_rank1of2_copy_waits.json.gz",
    "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz", "kineto/v100_dlrm_4_of_8_ranks",
    "nsys/h100_pipeline_2gpu.sqlite.gz",
)  # fmt: skip
PARTICLES = "kineto/a100_particle_transformer_forward_batch{}.json.gz"
SMALL, LARGE = (8, 43), (128, 128)  # batch and length of its two traces


def collectives(traces: Path | None) -> Iterator[Table]:
    """Yield the errors of all-reduces of A100s as `dgx-a100` gives them, against the mean of two measured runs."""
    rows = []
    for gpus in GPUS if traces is not None else ():
        file = traces / f"collectives/a100_allreduce_{gpus}gpus.csv"  # type: ignore[operator]
        measured = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 3, 5))
        sizes, times = measured[:, 0], measured[:, 1:].mean(axis=1)
        errors = np.array([find_cluster(MACHINE).all_reduce_ns(each, gpus) for each in sizes]) / times - 1
        row = {"GPUs": str(gpus)}
        for shown in SHOWN_MIB:
            at = np.flatnonzero(sizes == shown * MIB)[0]
            row |= {f"{shown} MiB, us": f"{times[at] / 1e3:.0f}", f"{shown} MiB: error": f"{errors[at]:+.1%}"}
        long, short = (np.abs(errors[where]) for where in (sizes >= LONG_BYTES, sizes < LONG_BYTES))
        judged = {"median": np.median(long), "worst": long.max(), "worst below 8 MB": short.max()}
        rows.append(row | {name: f"{error:.1%}" for name, error in judged.items()})
    if rows:
        yield "collectives", rows


def contention(traces: Path | None) -> Iterator[Table]:
    """Yield how kernels beside transfers slow down; held out: one half of the places by the factor of the other."""
    rows = []
    for name in SEVERAL if traces is not None else ():
        found = measured_contention(daydream.build(daydream.load(traces / name)))  # type: ignore[operator]
        ran, places = found.kernel, found.kernels
        row = dict.fromkeys(
            ("trace", "factor", "by chance", "places", "held out: without", "with", "size"), ""
        )
        row["trace"] = Path(name).name.partition(".")[0]
        if ran is not None and places is not None:
            errors = _held_out(places)
            (without, with_factor), size_ = errors.mean(axis=0), np.abs(errors[:, 1]).mean()
            cells = f"{ran.factor:.2f}", f"{ran.low:.2f} to {ran.high:.2f}", str(ran.places)
            row |= dict(zip(("factor", "by chance", "places"), cells, strict=True))
            row |= {
                "held out: without": f"{without:+.1%}",
                "with": f"{with_factor:+.1%}",
                "size": f"{size_:.1%}",
            }
        rows.append(row)
    if rows:
        yield "contention", rows


def _held_out(places: Compared) -> np.ndarray:
    """Return errors without and with the factor of the other half, a row for each of 200 ways to halve the places."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        order = rng.permutation(len(places))
        known, asked = order[: len(order) // 2], order[len(order) // 2 :]
        alone, overlap = places.alone_ns[asked].sum(), places.overlap_ns[asked].sum()
        took = alone + places.excess_ns[asked].sum()
        rows.append((alone / took - 1, (alone + (1 - 1 / places.factor(known)) * overlap) / took - 1))
    return np.array(rows)


def other_sizes(traces: Path | None) -> Iterator[Table]:
    """Yield the errors of kernels at another batch and length: those of both recordings, given their work there."""
    rows = []
    for old, new in ((SMALL, LARGE), (LARGE, SMALL)) if traces is not None else ():
        paths = [traces / PARTICLES.format(batch) for batch, _ in (old, new)]  # type: ignore[operator]
        here, there = _alike(*(daydream.build(daydream.load(path)).select(kind="kernel") for path in paths))
        was, now = work(here.graph, here), work(there.graph, there)
        flop = np.where(was.flop > 0, now.flop / np.maximum(was.flop, 1), 1.0)
        before, measured = here.duration_ns, there.duration_ns
        more = {"flop_factor": flop, "bytes_factor": now.nbytes / was.nbytes}
        predicted = retime(here.graph, here, **more).duration_ns
        naive = (before * np.where(flop != 1, flop, more["bytes_factor"])).sum()
        rows.append({
            "from": "{} x {}".format(*old), "to": "{} x {}".format(*new), "kernels": str(len(here)),
            "measured ms": f"{measured.sum() / 1e6:.2f}", "predicted ms": f"{predicted.sum() / 1e6:.2f}",
            "error": f"{predicted.sum() / measured.sum() - 1:+.1%}",
            "within 1.5 x": f"{(np.abs(np.log(predicted / measured)) < np.log(1.5)).mean():.0%}",
            "in proportion": f"{naive / measured.sum() - 1:+.0%}",
        })  # fmt: skip
    if rows:
        yield "other_sizes", rows


def _alike(here: Selection, there: Selection) -> tuple[Selection, Selection]:
    """Return the kernels of one order of operators that both have, those whose bytes are known."""
    amounts = [work(each.graph, each) for each in (here, there)]
    calls = [
        list(zip(each.op.tolist(), amount.family.tolist(), strict=True))
        for each, amount in zip((here, there), amounts, strict=True)
    ]
    blocks = SequenceMatcher(a=calls[0], b=calls[1], autojunk=False).get_matching_blocks()
    first = np.concatenate([np.arange(block.a, block.a + block.size) for block in blocks])
    second = np.concatenate([np.arange(block.b, block.b + block.size) for block in blocks])
    known = (amounts[0].nbytes[first] > 0) & (amounts[1].nbytes[second] > 0)
    return here.graph.tasks(here.ids[first[known]]), there.graph.tasks(there.ids[second[known]])


TABLES: dict[str, Callable[[Path | None], Iterator[Table]]] = {
    "collectives": collectives, "contention": contention, "other_sizes": other_sizes,
}  # fmt: skip
