"""Write the six tables of docs/accuracy.md from the rows in docs/evaluation.

    python validation/evaluation.py                            the tables on stdout
    python validation/evaluation.py --write docs/accuracy.md   between their markers

The rows are CSV files that `accuracy.py`, `memory_accuracy.py` and the other scripts write. Nothing is measured or
predicted here, so the tables can be checked without a trace.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
from tables import put

ROWS = Path(__file__).parents[1] / "docs" / "evaluation"
LARGE = 0.2  # an error from here on has a row of its own
CLOSE = 0.05  # ratios nearer than this are no ranking that a measurement of this noise can tell
Row = dict[str, str]

RECORDED = {
    "compiled": "`torch.compile`, 15 small models, CPU",
    "cpu": "optimizer, accumulation, batch, layers, checkpointing, compile; 5 models, CPU",
    "ddp_link": "`DistributedDataParallel` over a link of known speed, CPU",
    "fsdp_link": "`fully_shard` over a link of known speed, CPU",
    "h100": "16 bits, TF32, layout, batch, compile, CUDA graphs, copies; 3 models on an H100, 4 moved to or from it",
    "h200": "the same changes, 6 models, H200",
}
SERIES = {
    "vit_a100": "ViT, A100: loader, 16 bits, fused and compiled",
    "unet3d_a100": "3D U-Net, A100: workers, bucket size",
    "t4_mlp_amp": "MLP, T4: 16 bits",
    "a100_switch_moe": "mixture of experts, A100: batch, length",
    "a10_gpt_small": "GPT, A10: length",
    "hopper_tf32": "Hopper: TF32",
}


@dataclass(frozen=True)
class Judged:
    """A change that was made: the error of the predicted step, and whether the printed interval held the truth."""

    group: str
    what: str
    measured: str
    predicted: str
    error: float
    inside: tuple[bool, ...] = ()  # one a recording; empty where no interval was printed


def main() -> None:
    """Print the tables, or put them on the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="the page; without it the tables are printed")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the folder of CSV files")
    options = parser.parse_args()
    for name, lines in tables(options.rows):
        put(options.write, name, lines)


def tables(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the six tables with the names of their markers."""
    found = [
        *recorded(read(folder, "ledger")),
        *pairs(read(folder, "gpu_pairs")),
        *public(read(folder, "public_pairs")),
    ]
    found += own(read(folder, "own_changes"))
    yield "simulation", [*simulation(folder)]
    yield "changes", [*changes(found, read(folder, "ledger"), read(folder, "gpu_pairs"))]
    yield "misses", [*misses(found)]
    yield "memory", [*memory(read(folder, "memory"))]
    yield "parts", [*parts(folder)]
    yield "speed", [*speed(read(folder, "speed_aims"))]


def read(folder: Path, name: str) -> list[Row]:
    """Return the rows of a table, by the names of its columns."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """Return the first number of a text: 0.125 of `+12.5%, outside`, 1 of `miss` (a refusal is 100 % off)."""
    if text in {"miss", ""}:
        return 1.0
    value = float(re.findall(r"[-+]?\d[\d,]*\.?\d*", text)[0].replace(",", ""))
    return value / 100 if "%" in text.partition(", ")[0] else value


def spread(errors: Iterable[float]) -> list[str]:
    """Return the median, the 90th percentile and the largest of the errors' sizes."""
    sizes = [abs(error) for error in errors]
    return [f"{each:.1%}" for each in (median(sizes), float(np.quantile(sizes, 0.9)), max(sizes))]


def held(inside: Iterable[bool]) -> str:
    """Return how many intervals hold, of how many."""
    known = list(inside)
    return f"{sum(known)} of {len(known)}" if known else ""


def grid(*titles: str) -> Iterator[str]:
    """Yield the head of a Markdown table."""
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"


# 1. Simulation -----------------------------------------------------------------------------------


def simulation(folder: Path) -> Iterator[str]:
    """Yield the table of replays and of the machine model."""
    yield from grid("simulated", "cases", "median error", "90th percentile", "worst", "worst case")
    replays = [row for row in read(folder, "replays") if not row["steps"].startswith("refused")]
    for title, column in (
        ("replay of public traces: median step", "replay median"),
        ("the same, all latencies typical", "typical costs: median"),
    ):
        yield _spread_row(title, [(row["trace"], number(row[column])) for row in replays])
    for title, name in (
        ("machine model, changed and run again", "machine_model"),
        ("machines hard to read", "hard_machines"),
    ):
        cases = [
            (f"{row['machine']}, {row['window']}, {change}", number(error))
            for row in read(folder, name) for change, error in row.items() if change not in {"machine", "window"}
        ]  # fmt: skip
        yield _spread_row(title, cases)
    steady = [
        (row["trace"], 1 - number(row["lowest"]) / number(row["highest"]))
        for row in read(folder, "steady_steps")
    ]
    yield _spread_row("speed-up of each steady step, GPU twice as fast: spread", steady)


def _spread_row(title: str, cases: list[tuple[str, float]]) -> str:
    worst = max(cases, key=lambda case: abs(case[1]))[0]
    figures = [f"{each:.2%}" for each in _quantiles([error for _, error in cases])]
    return f"| {title} | {len(cases)} | {' | '.join(figures)} | {worst} |"


def _quantiles(errors: list[float]) -> list[float]:
    sizes = [abs(error) for error in errors]
    return [median(sizes), float(np.quantile(sizes, 0.9)), max(sizes)]


# 2 and 3. Changes that were made -----------------------------------------------------------------


def recorded(rows: list[Row]) -> Iterator[Judged]:
    """Yield each change of each model of the ledger: the median of its recordings."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["refused"]:
            found[row["device"], row["role"], row["model"], row["change"]].append(row)
    for (device, role, model, change), mine in found.items():
        measured, predicted = (
            median(number(row[name]) for row in mine) for name in ("measured", "predicted")
        )
        yield Judged(
            f"{device}, {role}", f"{model}: {change}", f"{measured:.3f}", f"{predicted:.3f}",
            median(number(row["error"]) for row in mine),
            tuple(number(row["low"]) <= number(row["measured"]) <= number(row["high"]) for row in mine),
        )  # fmt: skip


def ranked(rows: list[Row]) -> tuple[int, int]:
    """Return in how many pairs of a recording's changes the faster one is predicted, and how many pairs there are."""
    right = pairs_ = 0
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if not row["refused"]:
            found[row["device"], row["recording"]].append((number(row["measured"]), number(row["predicted"])))
    for mine in found.values():
        for (one, first), (other, second) in combinations(mine, 2):
            if abs(one / other - 1) > CLOSE:
                pairs_ += 1
                right += (one < other) == (first < second)
    return right, pairs_


def pairs(rows: list[Row]) -> Iterator[Judged]:
    """Yield the public recordings before and after a change on a GPU."""
    for row in rows:
        inside = ("outside" not in row["error"],) if row["judged"] == "step" else ()
        yield Judged(
            row["series"], f"{row['recorded']}: {row['asked']}, {row['judged']}", f"{row['measured ms']} ms",
            f"{row['predicted ms']} ms", number(row["error"]), inside,
        )  # fmt: skip


def public(rows: list[Row]) -> Iterator[Judged]:
    """Yield the public pairs that were known when the models were written."""
    for row in rows:
        yield Judged(
            "public pairs", f"{row['pair']}: {row['asked']}", f"{row['after ms']} ms", f"{row['predicted ms']} ms",
            number(row["error"]), ("outside" not in row["range"],),
        )  # fmt: skip


def own(rows: list[Row]) -> Iterator[Judged]:
    """Yield the changes of own files, made by tools or by hand."""
    for row in rows:
        developed = row["model"].endswith("(developed on)")
        group = "busy" if row["machine"] == "busy" else "developed" if developed else "judges"
        model = row["model"].removesuffix(" (developed on)")
        yield Judged(
            f"own, {group}", f"{model}: {row['change']}, machine {row['machine']}", row["measured"], row["predicted"],
            number(row["error of the step"]),
        )  # fmt: skip


def changes(found: list[Judged], ledger: list[Row], gpu_pairs: list[Row]) -> Iterator[str]:
    """Yield the table of errors by what was changed, and where."""
    yield from grid(
        "changed",
        "role",
        "changes",
        "median error",
        "90th percentile",
        "worst",
        "in the interval",
        "faster one named",
    )
    for device, title in RECORDED.items():
        for role in ("judgement", "development"):
            mine = [one for one in found if one.group == f"{device}, {role}"]
            order = ranked([row for row in ledger if (row["device"], row["role"]) == (device, role)])
            if mine:
                yield _change(title, role, mine, "{:,} of {:,}".format(*order) if order[1] else "")
    for series, title in SERIES.items():
        yield _change(title, "asked as a person would", [one for one in found if one.group == series])
    every = [one for one in found if one.group in SERIES]
    yield _change("all six public series", "asked as a person would", every)
    left_out = [Judged("", "", "", "", number(row["left out"]), ("outside" not in row["left out"],) if row["judged"] == "step" else ())
                for row in gpu_pairs]  # fmt: skip
    yield _change("the same, constants fitted without the series", "held out", left_out)
    yield _change(
        "GPU to GPU, batch, length, loader",
        "development",
        [one for one in found if one.group == "public pairs"],
    )
    for group, role in (("judges", "judgement"), ("developed", "development"), ("busy", "on a busy machine")):
        yield _change(
            "own changes by tool or by hand, CPU",
            role,
            [one for one in found if one.group == f"own, {group}"],
        )


def _change(title: str, role: str, mine: list[Judged], order: str = "") -> str:
    inside = held(each for one in mine for each in one.inside)
    cells = [title, role, str(len(mine)), *spread(one.error for one in mine), inside, order]
    return f"| {' | '.join(cells)} |"


def misses(found: list[Judged]) -> Iterator[str]:
    """Yield the table of every change that is predicted further off than `LARGE`."""
    yield from grid("recorded", "change", "measured", "predicted", "error", "interval")
    for one in sorted(found, key=lambda one: -abs(one.error)):
        if abs(one.error) >= LARGE:
            holds = "" if not one.inside else "holds" if all(one.inside) else "misses"
            yield f"| {one.group} | {one.what} | {one.measured} | {one.predicted} | {one.error:+.1%} | {holds} |"


# 4. Memory ---------------------------------------------------------------------------------------


def memory(rows: list[Row]) -> Iterator[str]:
    """Yield the table of errors of the predicted peak."""
    yield from grid(
        "recorded",
        "role",
        "changes",
        "refused",
        "median error",
        "90th percentile",
        "worst",
        "in the interval",
    )
    for group in dict.fromkeys(row["group"] for row in rows):
        for role in ("judgement", "development"):
            mine = [row for row in rows if (row["group"], row["role"]) == (group, role)]
            if mine:
                worst = max(mine, key=lambda row: abs(number(row["error"])))
                *figures, most = spread(number(row["error"]) for row in mine)
                refused = sum(bool(row["refused"]) for row in mine)
                cells = [
                    group,
                    role,
                    str(len(mine)),
                    str(refused),
                    *figures,
                    f"{most} ({worst['of']}, {worst['change']})",
                ]
                yield f"| {' | '.join([*cells, held(row['inside'] == 'yes' for row in mine)])} |"


# 5. Parts ----------------------------------------------------------------------------------------


def parts(folder: Path) -> Iterator[str]:
    """Yield the table of what a prediction is made of, each part judged by itself."""
    yield from grid("part", "cases", "result", "rows")
    for title, name, result in PARTS:
        cases, said = result(read(folder, name))
        yield f"| {title} | {cases} | {said} | [{name}](evaluation/{name}.csv) |"


def _total(rows: list[Row], *columns: str) -> int:
    return sum(int(row[column].replace(",", "")) for row in rows for column in columns)


def _least(rows: list[Row], column: str) -> str:
    return f"{min(number(row[column]) for row in rows):.0%}"


def _off(rows: list[Row], column: str) -> str:
    middle, _, worst = spread(number(row[column]) for row in rows)
    return f"median {middle}, worst {worst}"


def _collectives(rows: list[Row]) -> tuple[str, str]:
    worst = max(number(row["worst"]) for row in rows)
    below = max(number(row["worst below 8 MB"]) for row in rows)
    return f"{len(rows)} counts of GPUs", (
        f"median at most {max(number(row['median']) for row in rows):.1%}, worst {worst:.1%}; below 8 MB {below:.1%}"
    )


def _contention(rows: list[Row]) -> tuple[str, str]:
    mine = [row for row in rows if row["held out: without"]]
    return f"{len(mine)} of {len(rows)} traces measurable", "; ".join(
        f"held-out error {row['held out: without']} without a factor, {row['with']} with" for row in mine
    )


def _mutations(rows: list[Row]) -> tuple[str, str]:
    (every,) = (row for row in rows if row["source"] == "all")
    wrong = f"{every['confident and wrong']} of {number(every['answers']):,.0f} answers confident and wrong"
    return (
        f"{number(every['mutations']):,.0f} mutations",
        f"{wrong}; {every['refused']} refused, {every['wide']} wide",
    )


def _laws(rows: list[Row]) -> tuple[str, str]:
    asked = _total(rows, "answered", "refused")
    return f"{asked:,} questions", f"{_total(rows, 'laws broken')} laws broken"


PARTS: tuple[tuple[str, str, Callable[[list[Row]], tuple[str, str]]], ...] = (
    ("all-reduce of A100s, from the machine's name alone", "collectives", _collectives),
    ("kernels beside transfers", "collectives_5", _contention),
    ("kernels moved to another GPU", "cross_device", lambda rows: (str(len(rows[:-1])), _off(rows[:-1], "error"))),
    ("kernels at another batch and length", "cross_device_2", lambda rows: (f"{len(rows)} x {rows[0]['kernels']}", _off(rows, "error"))),
    ("layers of fused kernels", "compiled_models", lambda rows: (
        f"{len(rows)} models", f"at least {_least(rows, 'with a layer')} of the time has a layer",
    )),
    ("cost of recording, where a trace does not say it", "typical_cost", lambda rows: (
        f"{len(rows)} recordings", f"step off by {_off(rows, 'as recorded')}; with the typical cost {_off(rows, 'typical cost taken out')}",
    )),
    ("instrumented operators", "coverage", lambda rows: (f"{len(rows)} models", f"{_total(rows, 'missed')} missed, {_total(rows, 'extra')} extra")),
    ("laws, on public traces", "laws", _laws),
    ("mutated recordings, against the machine model or the answer before", "mutations_2", _mutations),
)  # fmt: skip


# 6. Speed ----------------------------------------------------------------------------------------


def speed(rows: list[Row]) -> Iterator[str]:
    """Yield the table of aims that are missed, and how many are met."""
    yield from grid("aim", "bar", "measured", "met")
    for row in rows:
        if row["met"] != "yes":
            yield f"| {row['aim']} | {row['bar']} | {row['measured']} | {row['met'].partition(';')[0]} |"
    met = sum(row["met"] == "yes" for row in rows)
    yield f"| all {len(rows)} | | | {met} met |"


if __name__ == "__main__":
    main()
