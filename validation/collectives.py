"""Write docs/evaluation/collectives.csv and its kin: modelled against measured collectives, and traces of several ranks.

    python validation/collectives.py --traces ../shared/traces --write docs/evaluation

What stands between the page's two marks is replaced; without `--write` the tables are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tables import keep

import daydream
from daydream.collect.derive.collectives import match_collectives
from daydream.costs.contention import Compared, measured_contention
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.world_size import fitted_to_trace, measured_in
from daydream.graph.build import build

MIB = 1 << 20
SHOWN_MIB = (1, 8, 25, 1024)
LONG_BYTES = 8_000_000
GPUS = (2, 4, 8)
MACHINE = "dgx-a100"
RANKS = "kineto/v100_dlrm_4_of_8_ranks"
FITTED = (("kineto/a100_resnet_ddp_rank0of2.json.gz", "dgx-a100"), (RANKS, "dgx-v100"),
          ("kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz", "mi300x"))  # fmt: skip

SEVERAL = (
    "kineto/a100_resnet_ddp_rank0of2.json.gz",
    "kineto/v100_recsys_rank1of2_copy_waits.json.gz",
    "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz",
    RANKS,
    "nsys/h100_pipeline_2gpu.sqlite.gz",
)


def main() -> None:
    """Fill the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, help="folder with collectives/ and kineto/ of public traces")
    parser.add_argument(
        "--write", type=Path, help="the folder of CSV files; the tables are printed without it"
    )
    options = parser.parse_args()
    folder = options.traces or Path(__file__).resolve().parents[2] / "shared" / "traces"
    if not (folder / "collectives").exists():
        parser.exit(1, "the public traces are not at hand; name their folder with --traces\n")
    parts = (_all_reduces, _ranks, _fitted, _contention)
    keep(options.write, "collectives", (line for part in parts for line in part(folder)))


def _all_reduces(folder: Path) -> Iterator[str]:
    yield f"### All-reduce of A100s, as `{MACHINE}` by name says"
    yield ""
    yield "Times in us, the mean of the two runs measured. Nothing is fitted. Errors over all sizes of 8 MB or more"
    yield "(1,017 of them), and over the seven shorter ones from 1 MiB."
    yield ""
    yield f"| GPUs | {' | '.join(f'{size} MiB: measured | error' for size in SHOWN_MIB)} | median | worst | worst below 8 MB |"
    yield "|" + "---|" * (2 * len(SHOWN_MIB) + 4)
    for gpus in GPUS:
        file = folder / f"collectives/a100_allreduce_{gpus}gpus.csv"
        rows = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 3, 5))
        sizes, times = rows[:, 0], rows[:, 1:].mean(axis=1)
        errors = np.array([find_cluster(MACHINE).all_reduce_ns(size, gpus) for size in sizes]) / times - 1
        shown = [np.flatnonzero(sizes == size * MIB)[0] for size in SHOWN_MIB]
        cells = [f"{times[at] / 1e3:,.0f} | {errors[at]:+.1%}" for at in shown]
        long, short = (np.abs(errors[where]) for where in (sizes >= LONG_BYTES, sizes < LONG_BYTES))
        judged = f"{np.median(long):.1%} | {long.max():.1%} | {short.max():.1%}"
        yield f"| {gpus} | {' | '.join(cells)} | {judged} |"
    yield ""


def _ranks(folder: Path) -> Iterator[str]:
    trace = daydream.load(folder / RANKS)
    result = daydream.replay(trace)
    yield f"### `{RANKS.rpartition('/')[2]}`: four of eight ranks, replayed"
    yield ""
    alignment = trace.metadata["alignment"]
    moved = any(alignment["moved_ns"].values())
    yield (
        f"{alignment['collectives']} collectives matched, {sum(alignment['alone'].values())} left over. Ends within "
        f"{alignment['residual_ns'] / 1e3:.1f} us of each other; {'clocks moved' if moved else 'no clock was moved'}."
    )
    yield ""
    yield "| collective | bytes | arrivals over us | transfer at most us | ends apart us: measured | replayed |"
    yield "|---|---|---|---|---|---|"
    start, end = trace["start_ns"], trace["start_ns"] + trace["duration_ns"]
    for rows, each in zip(match_collectives(trace).rows, result.to_json()["collectives"], strict=True):
        spread = np.ptp(start[rows]) / 1e3
        transfer = (end[rows].max() - start[rows].max()) / 1e3
        apart = [each[f"{which}_end_spread_ns"] / 1e3 for which in ("measured", "replayed")]
        yield (
            f"| {trace.values('collective', rows[:1])[0]} | {each['bytes']:,} | {spread:,.0f} | {transfer:,.0f} "
            f"| {apart[0]:.0f} | {apart[1]:.0f} |"
        )
    yield ""
    yield "| rank | step measured ms | replayed ms | error | counted |"
    yield "|---|---|---|---|---|"
    timeline = result.timeline
    for number, step in enumerate(trace.metadata["steps"]):
        done = int(timeline.end_ns[timeline.last_of_steps[0, number]])
        replayed = done - step["start_ns"]
        counted = "yes" if step["covered"] else f"no: {step['why_not']}"
        yield (
            f"| {step['rank']} | {step['measured_ns'] / 1e6:.3f} | {replayed / 1e6:.3f} "
            f"| {replayed / step['measured_ns'] - 1:+.2%} | {counted} |"
        )
    yield ""


def _fitted(folder: Path) -> Iterator[str]:
    yield "### Links fitted to the collectives of traces"
    yield ""
    yield "What a rank recorded holds waiting for the others, so the fit stays below all recorded times."
    yield ""
    yield "| trace | described as | GB/s described | GB/s fitted | collectives used |"
    yield "|---|---|---|---|---|"
    for name, machine in FITTED:
        trace = daydream.load(folder / name)
        described = find_cluster(machine)
        fitted = fitted_to_trace(described, trace)
        short = name.rpartition("/")[2].removesuffix(".json.gz")
        yield (
            f"| `{short}` | `{machine}` | {described.intra.bandwidth:.4g} | {fitted.intra.bandwidth:.4g} "
            f"| {len(measured_in(trace))} |"
        )


def _contention(folder: Path) -> Iterator[str]:
    yield ""
    yield "### Kernels beside transfers"
    yield ""
    yield (
        "Factor measured, and where nine of ten lie by chance. Held out: all runs beside a transfer at one half of "
        "the places together, without a factor and with that of the other half; mean error of 200 such halves, "
        "and mean size of it."
    )
    yield ""
    yield "| trace | factor | by chance | places | runs beside, alone | held out: without | with | size |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in SEVERAL:
        found = measured_contention(build(daydream.load(folder / name)))
        short = name.rpartition("/")[2].split(".")[0]
        ran, places = found.kernel, found.kernels
        if ran is None or places is None:
            yield f"| `{short}` | not measured | | {0 if places is None else len(places)} | | | | |"
            continue
        errors = _held_out(places)
        (without, with_factor), size = errors.mean(axis=0), np.abs(errors[:, 1]).mean()
        yield (
            f"| `{short}` | {ran.factor:.2f} | {ran.low:.2f} to {ran.high:.2f} | {ran.places} | {ran.beside}, "
            f"{ran.alone} | {without:+.1%} | {with_factor:+.1%} | {size:.1%} |"
        )


def _held_out(places: Compared) -> np.ndarray:
    """Return errors without and with the factor of the other half, a row for each way to halve the places."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        order = rng.permutation(len(places))
        known, asked = order[: len(order) // 2], order[len(order) // 2 :]
        alone, overlap = places.alone_ns[asked].sum(), places.overlap_ns[asked].sum()
        took = alone + places.excess_ns[asked].sum()
        rows.append((alone / took - 1, (alone + (1 - 1 / places.factor(known)) * overlap) / took - 1))
    return np.array(rows)


if __name__ == "__main__":
    main()
