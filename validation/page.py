"""The six tables of docs/accuracy.md from the rows in docs/evaluation, and every published figure judged again."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from statistics import median

import numpy as np
from evaluate import CASES, JUDGED, PUBLIC, ROWS, STEP, Row, recomputed
from evaluate import write as write_rows

PAGE, OPTIMIZATIONS = ROWS.parent / "accuracy.md", ROWS.parent / "optimizations.md"
README = ROWS.parents[1] / "README.md"
LARGE = 0.2  # an error from here on has a row of its own
CLOSE = 0.05  # ratios nearer than this are no ranking that a measurement of this noise can tell
SERIES = {each["name"]: each["title"] for each in CASES["series"] if "title" in each}


@dataclass(frozen=True)
class Change:
    """A change that was made: the error of the predicted step, and whether the printed interval held the truth."""

    group: str
    what: str
    measured: str
    predicted: str
    error: float
    inside: tuple[bool, ...] = ()  # one a recording; empty where no interval was printed


def write() -> None:
    """Put the tables on the page, and the picture beside it."""
    import plot

    for name, lines in tables(ROWS):
        put(PAGE, name, lines)
    put(OPTIMIZATIONS, "the list of optimizations", listed())
    plot.write(read(ROWS, "changes"), PAGE.with_name("accuracy.svg"))


def listed() -> Iterator[str]:
    """Yield the optimizations and what each predicts, by stage."""
    from daydream.transforms import stages
    from daydream.transforms.registry import find, names

    every = [find(name) for name in names()]
    for stage, title in stages.TITLES.items():
        if mine := [each for each in every if each.stage == stage]:
            yield from (f"**{title[0].upper()}{title[1:]}**", "")
            yield from (*(f"- `{each.name}`: {each.summary}" for each in mine), "")


def put(page: Path, name: str, lines: Iterable[str]) -> None:
    """Put lines between the markers of a name on a page."""
    begin, end = (f"<!-- {mark}: {name} -->" for mark in ("begin", "end"))
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    text = "\n".join(lines).strip()
    page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def tables(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the six tables with the names of their markers."""
    rows = read(folder, "changes")
    found = [*recorded(rows), *public(rows), *own(read(folder, "own_changes"))]
    yield "simulation", [*simulation(folder)]
    yield "changes", [*changes(found, rows)]
    yield "misses", [*misses(found)]
    yield "memory", [*memory(read(folder, "memory"))]
    yield "parts", [*parts(folder)]
    yield "speed", [*speed(read(folder, "speed_aims"))]


def read(folder: Path, name: str) -> list[Row]:
    """Return the rows of a table, by the names of its columns."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """Return the first number of a text: 0.125 of `+12.5%, outside`, 1 of an empty one (a refusal is 100% off)."""
    if not text:
        return 1.0
    value = float(re.findall(r"[-+]?\d[\d,]*\.?\d*", text)[0].replace(",", ""))
    return value / 100 if "%" in text.partition(", ")[0] else value


def spread(errors: Iterable[float], digits: int = 1) -> list[str]:
    """Return the median, the 90th percentile and the largest of the errors' sizes."""
    sizes = [abs(error) for error in errors]
    return [f"{each:.{digits}%}" for each in (median(sizes), float(np.quantile(sizes, 0.9)), max(sizes))]


def held(inside: Iterable[bool]) -> str:
    """Return how many intervals hold, of how many."""
    known = list(inside)
    return f"{sum(known)} of {len(known)}" if known else ""


def line(*cells: object) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def grid(*titles: str) -> Iterator[str]:
    """Yield the head of a Markdown table."""
    yield line(*titles)
    yield "|---" * len(titles) + "|"


# 1. Simulation -----------------------------------------------------------------------------------


def simulation(folder: Path) -> Iterator[str]:
    """Yield the table of replays and of the machine model."""
    yield from grid("simulated", "cases", "median error", "90th percentile", "worst", "worst case")
    replays = [row for row in read(folder, "replays") if not row["steps"].startswith("refused")]
    cases = {
        title: [(row["trace"], number(row[column])) for row in replays]
        for title, column in (
            ("replay of public traces: median step", "replay median"),
            ("the same, all latencies typical", "typical costs: median"),
        )
    }
    for title, name in (
        ("machine model, changed and run again", "machine_model"),
        ("machines hard to read", "hard_machines"),
    ):
        cases[title] = [
            (f"{row['machine']}, {row['window']}, {change}", number(error))
            for row in read(folder, name) for change, error in row.items() if change not in {"machine", "window"}
        ]  # fmt: skip
    cases["speed-up of each steady step, GPU twice as fast: spread"] = [
        (row["trace"], 1 - number(row["lowest"]) / number(row["highest"]))
        for row in read(folder, "steady_steps")
    ]
    for title, mine in cases.items():
        worst, _ = max(mine, key=lambda case: abs(case[1]))
        yield line(title, len(mine), *spread((error for _, error in mine), digits=2), worst)


# 2 and 3. Changes that were made -----------------------------------------------------------------


def recorded(rows: list[Row]) -> Iterator[Change]:
    """Yield each change of each model of a device of ours: the median of its recordings."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["source"] in CASES["devices"] and not row["refused"]:
            found[row["source"], row["role"], row["model"], row["change"]].append(row)
    for (device, role, model, change), mine in found.items():
        measured, predicted, error = (
            median(number(row[name]) for row in mine) for name in ("measured", "predicted", "error")
        )
        inside = tuple(row["inside"] == "yes" for row in mine)
        yield Change(
            f"{device}, {role}", f"{model}: {change}", f"{measured:.3f}", f"{predicted:.3f}", error, inside
        )


def ranked(rows: list[Row]) -> tuple[int, int]:
    """Return in how many pairs of a recording's changes the faster one is predicted, and how many pairs there are."""
    right = pairs = 0
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if not row["refused"]:
            found[row["source"], row["recording"]].append((number(row["measured"]), number(row["predicted"])))
    for mine in found.values():
        for (one, first), (other, second) in combinations(mine, 2):
            if abs(one / other - 1) > CLOSE:
                pairs += 1
                right += (one < other) == (first < second)
    return right, pairs


def public(rows: list[Row]) -> Iterator[Change]:
    """Yield the public recordings before and after a change on a GPU."""
    for row in rows:
        if row["source"] in {*SERIES, PUBLIC}:
            model = f"{row['model']} " * (row["source"] == PUBLIC)
            what = f"{model}{row['recording']}: {row['change']}, {row['judged']}"
            inside = (row["inside"] == "yes",) if row["judged"] == STEP else ()
            times = (f"{row['measured']} ms", f"{row['predicted']} ms" if row["predicted"] else "refused")
            yield Change(row["source"], what, *times, number(row["error"]), inside)


def own(rows: list[Row]) -> Iterator[Change]:
    """Yield the changes of own files, made by tools or by hand."""
    for row in rows:
        group = "busy" if row["machine"] == "busy" else row["role"]
        what = f"{row['model']}: {row['change']}, machine {row['machine']}"
        yield Change(
            f"own, {group}", what, row["measured"], row["predicted"], number(row["error of the step"])
        )


def changes(found: list[Change], rows: list[Row]) -> Iterator[str]:
    """Yield the table of errors by what was changed, and where."""
    titles = ("changed", "role", "changes", "median error", "90th percentile", "worst", "in the interval")
    yield from grid(*titles, "faster one named")

    def of(*groups: str) -> list[Change]:
        return [one for one in found if one.group in groups]

    def summary(title: str, role: str, mine: list[Change], order: str = "") -> str:
        inside = held(each for one in mine for each in one.inside)
        return line(title, role, len(mine), *spread(one.error for one in mine), inside, order)

    for device, title in CASES["devices"].items():
        for role in (JUDGED, "development"):
            if mine := of(f"{device}, {role}"):
                right, pairs = ranked([row for row in rows if (row["source"], row["role"]) == (device, role)])
                yield summary(title, role, mine, f"{right:,} of {pairs:,}" if pairs else "")
    person = "asked as a person would"
    for series, title in SERIES.items():
        if mine := of(series):
            yield summary(title, person, mine)
    if every := of(*SERIES):
        yield summary("all six public series", person, every)
        left_out = [
            Change("", "", "", "", number(row["left out"]), ("outside" not in row["left out"],) * (row["judged"] == STEP))
            for row in rows if row["source"] in SERIES
        ]  # fmt: skip
        yield summary("the same, constants fitted without the series", "held out", left_out)
        yield summary("GPU to GPU, batch, length, loader", "development", of(PUBLIC))
    for role in (JUDGED, "development", "busy"):
        shown = "on a busy machine" if role == "busy" else role
        yield summary("own changes by tool or by hand, CPU", shown, of(f"own, {role}"))


def misses(found: list[Change]) -> Iterator[str]:
    """Yield the table of every change that is predicted further off than `LARGE`."""
    yield from grid("recorded", "change", "measured", "predicted", "error", "interval")
    for one in sorted(found, key=lambda one: -abs(one.error)):
        if abs(one.error) >= LARGE:
            holds = "" if not one.inside else "holds" if all(one.inside) else "misses"
            yield line(one.group, one.what, one.measured, one.predicted, f"{one.error:+.1%}", holds)


# 4. Memory ---------------------------------------------------------------------------------------


def memory(rows: list[Row]) -> Iterator[str]:
    """Yield the table of errors of the predicted peak."""
    titles = ("recorded", "role", "changes", "refused", "median error", "90th percentile", "worst")
    yield from grid(*titles, "in the interval")
    for group in dict.fromkeys(row["source"] for row in rows):
        for role in (JUDGED, "development"):
            mine = [row for row in rows if (row["source"], row["role"]) == (group, role)]
            if mine:
                worst = max(mine, key=lambda row: abs(number(row["error"])))
                *figures, most = spread(number(row["error"]) for row in mine)
                named = ", ".join(
                    filter(None, (worst["model"], f"{worst['recording']} {worst['change']}".strip()))
                )
                counts = len(mine), sum(bool(row["refused"]) for row in mine)
                inside = held(row["inside"] == "yes" for row in mine)
                yield line(group, role, *counts, *figures, f"{most} ({named})", inside)


# 5. Parts ----------------------------------------------------------------------------------------


def parts(folder: Path) -> Iterator[str]:
    """Yield the table of what a prediction is made of, each part judged by itself."""
    yield from grid("part", "cases", "result", "rows")
    for title, name, result in PARTS:
        if (folder / f"{name}.csv").exists():
            yield line(title, *result(read(folder, name)), f"[{name}](evaluation/{name}.csv)")


def _total(rows: list[Row], *columns: str) -> int:
    return sum(int(row[column].replace(",", "")) for row in rows for column in columns)


def _off(errors: Iterable[str]) -> str:
    middle, _, worst = spread(map(number, errors))
    return f"median {middle}, worst {worst}"


def _collectives(rows: list[Row]) -> tuple[str, str]:
    middle, worst, below = (
        max(number(row[of]) for row in rows) for of in ("median", "worst", "worst below 8 MB")
    )
    return (
        f"{len(rows)} counts of GPUs",
        f"median at most {middle:.1%}, worst {worst:.1%}; below 8 MB {below:.1%}",
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


def _devices(rows: list[Row]) -> tuple[str, str]:
    mine = [row["error"] for row in rows if row["source"] == PUBLIC and row["change"].startswith("gpu ")]
    return str(len(mine)), _off(mine) if mine else ""


def _emulation(rows: list[Row]) -> tuple[str, str]:
    kernels, step = (
        _off(row[f"{each}, ms: error"] for row in rows) for each in ("kernels", "step of that CPU")
    )
    peak = _off(row["peak, MiB: error"] for row in rows if row["peak, MiB: error"])
    inside = held(not number(row["outside of that CPU: error"]) for row in rows)
    unknown = _off(row["step, ms: error"] for row in rows)
    return f"{len(rows)} steps", (
        f"kernels {kernels}; peak {peak}; step, CPU known from other programs, {step}, {inside} inside; "
        f"CPU unknown, {unknown}"
    )


def _worlds(rows: list[Row]) -> tuple[str, str]:
    said = [f"asked for and held alike {held(row['ok'] == 'True' for row in rows if row['part'] == 'asked')}"]
    for part, of in (("waits", "with waits"), ("compute", "with compute")):
        timed = [row for row in rows if row["part"] == part]
        judged = [row["error"] for row in timed if row["error"]]
        said.append(f"step {of} {_off(judged)}, {len(timed) - len(judged)} of {len(timed)} unsteady")
    return f"{len(rows)} cases", "; ".join(said)


def _strategies(rows: list[Row]) -> tuple[str, str]:
    said = (
        f"{row['table']} {float(row['median_error']):.1%}, order {float(row['spearman']):.2f}" for row in rows
    )
    return f"{len(rows)} tables", "median " + "; ".join(said)


PARTS: tuple[tuple[str, str, Callable[[list[Row]], tuple[str, str]]], ...] = (
    ("all-reduce of A100s, from the machine's name alone", "collectives", _collectives),
    ("kernels beside transfers", "contention", _contention),
    ("kernels moved to another GPU", "changes", _devices),
    ("kernels at another batch and length", "other_sizes", lambda rows: (
        f"{len(rows)} x {rows[0]['kernels']}", _off(row["error"] for row in rows),
    )),
    ("layers of fused kernels", "compiled_models", lambda rows: (
        f"{len(rows)} models", f"at least {min(number(row['with a layer']) for row in rows):.0%} of the time has a layer",
    )),
    ("cost of recording, where a trace does not say it", "typical_cost", lambda rows: (
        f"{len(rows)} recordings", f"step off by {_off(row['as recorded'] for row in rows)}; with the typical cost "
        + _off(row["typical cost taken out"] for row in rows),
    )),
    ("instrumented operators", "coverage", lambda rows: (
        f"{len(rows)} models", f"{_total(rows, 'missed')} missed, {_total(rows, 'extra')} extra",
    )),
    ("emulated GPU", "emulation", _emulation),
    ("fake ranks, emulated link", "worlds", _worlds),
    ("strategies that others measured, one factor a table", "strategies", _strategies),
    ("laws, on public traces", "laws", lambda rows: (
        f"{_total(rows, 'answered', 'refused'):,} questions", f"{_total(rows, 'laws broken')} laws broken",
    )),
    ("mutated recordings, against the machine model or the answer before", "mutations_2", _mutations),
)  # fmt: skip


# 6. Speed ----------------------------------------------------------------------------------------


def speed(rows: list[Row]) -> Iterator[str]:
    """Yield the table of aims that are missed, and how many are met."""
    yield from grid("aim", "bar", "measured", "met")
    for row in rows:
        if row["met"] != "yes":
            yield line(row["aim"], row["bar"], row["measured"], row["met"].partition(";")[0])
    yield f"| all {len(rows)} | | | {sum(row['met'] == 'yes' for row in rows)} met |"


# Every published figure again ---------------------------------------------------------------------


def of_readme(shown: list[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the sentences of the README that have figures, with what the rows in a folder give.

    `shown` are the lines of the tables of the page.
    """
    cells = {
        tuple(row[:2]): row[2:]
        for row in ([cell.strip() for cell in each.split("|")[1:-1]] for each in shown)
    }

    def of(title: str, role: str) -> list[str]:
        return cells.get((CASES["devices"].get(title, title), role), [""] * 6)

    count, middle, _, worst, *_ = of("h100", JUDGED)
    yield "H100", f"Judged only, {count} changes on an H100: median error {middle}, worst {worst}."
    _, middle, _, worst, *_ = of("compiled", JUDGED)
    yield "torch.compile", f"`torch.compile` on a CPU, five models: {middle}, worst {worst}."
    count, middle, _, worst, inside, _ = of("all six public series", "asked as a person would")
    yield (
        "public recordings",
        f"on A100, A10, T4 and Hopper, {count} rows: median error {middle}, worst {worst}; the interval holds in {inside}.",
    )
    count, middle, _, worst, *_ = of("h200", "development")
    yield "H200", f"H200, {count} changes: median error {middle}, worst {worst}:"
    worsts = [
        next((row for (title, _), row in cells.items() if title == each), [""] * 4)[2] for each in MACHINES
    ]
    yield (
        "machine model",
        "whose true answer is known: worst error {} on common programs, {} on hard ones.".format(*worsts),
    )
    ratios = [row["measured"] for row in read(folder, "changes") if (row["model"], row["recording"]) == MADE]
    yield "made and measured", f"The change was then made and measured: {1 / number(ratios[0]):.2f}x."
    import daydream

    trace = daydream.load(ROWS.parents[1] / "examples" / "train_gpt_h200.parquet")
    answers = {name: daydream.whatif(trace, name) for name in ("amp", "fused-adam", "amp+fused-adam")}
    for name, answer in answers.items():
        yield name, f"{name}: {(answer.predicted_ns or 0) / 1e6:.2f} ms, {answer.speedup:.2f}x"
    for command in re.findall(r"^\$ daydream (.*)", README.read_text(encoding="utf-8"), re.MULTILINE):
        words = [sys.executable, "-m", "daydream", *command.split()]
        said = subprocess.run(words, cwd=README.parent, capture_output=True, text=True, check=True).stdout
        yield f"`{command.split(maxsplit=2)[1]}`", said.splitlines()[0]


NUMBER = r"\d+(?:[.,]\d+)*"
MACHINES = ("machine model, changed and run again", "machines hard to read")
MADE = ("train_gpt", "train_gpt-fused-adam.parquet")
# Parts of the names of figures whose recordings are public traces, which are no part of the repository.
PUBLIC_FIGURES = (*SERIES, *SERIES.values(), "public", "the same, ", "GPU to GPU", "each steady step")
NOT_HERE = {
    "speed": "`benchmarks/bench.py` measures them",
    "parts": "public traces, and scripts of the revisions that the page names",
    "the pairs that hold with each model left out": "public traces are among them",
    "README, an answer `in a second or two`": "`benchmarks/bench.py` measures it",
}


def judge(traces: Path | None) -> int:
    """Print each published figure beside the same from today's code; return 1 where one differs."""
    names = ["changes", "memory", "own_changes", "machine_model", *(["replays"] if traces else [])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path in ROWS.glob("*.csv"):
            (folder / path.name).write_bytes(path.read_bytes())
        for name, rows in recomputed(names, traces):
            kept = {*SERIES, PUBLIC} if traces is None and name in {"changes", "memory"} else set()
            write_rows(
                folder,
                name,
                [*rows, *(row for row in read(ROWS, name) if row["source"] in kept)] if kept else rows,
            )
        found = [(name, *both) for name, both in _beside(folder)]
        shown = [each for _, lines in tables(folder) for each in lines]
        text = " ".join(README.read_text(encoding="utf-8").split())
        for name, sentence in of_readme(shown, folder):
            shown_there = re.search(NUMBER.join(map(re.escape, re.split(NUMBER, sentence))), text)
            found.append((f"README, {name}", shown_there[0] if shown_there else "not there", sentence))
    verdicts: Counter[str] = Counter()
    for name, published, now in found:
        public = traces is None and any(part in name for part in PUBLIC_FIGURES)
        verdict = (
            "DIFFERENT" if published != now else "not recomputed: needs public traces" if public else "equal"
        )
        verdicts[verdict] += 1
        print(f"{verdict:<11} {name}: {published}" + f" | now {now}" * (published != now))
    for name, why in NOT_HERE.items():
        print(f"not recomputed: {name}: {why}")
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return int("DIFFERENT" in verdicts)


def _beside(folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each line of the tables of the page with what the rows in a folder give."""
    page = PAGE.read_text(encoding="utf-8")
    for table, lines in tables(folder):
        if table not in NOT_HERE:
            shown = page.partition(f"<!-- begin: {table} -->")[2].partition(f"<!-- end: {table} -->")[0]
            for published, now in zip_longest(shown.strip().splitlines()[2:], lines[2:], fillvalue="no line"):
                title = ", ".join(cell.strip() for cell in published.split("|")[1:3])
                yield f"{PAGE.name}, {table}: {title}", (published, now)
