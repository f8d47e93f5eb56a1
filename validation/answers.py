"""Compare the answers of this working tree with those of another revision and with kept ones.

    python validation/answers.py --against main                    all traces, by hand: an hour or more; goes on where it stopped
    python validation/answers.py --against main --traces examples  those of a folder, or of one file
    python validation/answers.py --sample                          the kept answers about a few traces, as CI does
    python validation/answers.py --keep HEAD                       keep those of a revision: some minutes

Every optimization and every question is asked of every trace, in one process a trace, and all numbers of the JSON are
compared. A difference is owned by a predicate in `answer_changes.py` or printed, and then the exit code is 1. Who changes
answers on purpose keeps the new ones and says in CHANGELOG.md what changed and why. Answers are cached by the content of
the code and of the trace.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from answer_changes import OWNERS, Answer, Row
from answer_truths import HERE, ROOT, SHARED, Truth, known_truths, machines, public_truths
from asked import asked

KEPT = HERE / "answers.json.gz"
OWN = "examples validation/* tests/collect/executorch"
FOLDERS = (  # of a folder that is given
    "kineto nsys nsys_osrt odd rocprof pairs/* cases cases/symptoms formats/kineto_* formats/mtia formats/ascend "
    "formats/jax formats/rocprofv3 modes"
)
TRACE = re.compile(r"(\.json|\.sqlite|\.pb|kernel_trace\.csv)(\.gz)?$|\.parquet$")
NO_TRACE = re.compile(
    r"measured\.json|peaks\.json|found\.json|answers\.|cluster_comm|not_kineto|git_lfs|/own_changes/"
)
REPEATS = re.compile(r"validation/(cpu|compiled|\w+_link)/.*-[2-9]\.parquet$|h200/train_gpt-")  # asked little
SAMPLE = (
    "examples/synthetic_gpt_gpu examples/mlp_cpu examples/train_gpt_h200 cpu/MLP-1 cpu/LSTM-2 compiled/MLP-128-breaks-1 "
    "ddp_link/MLP-2 h200/resnet50 machine/gpu_bound machine/multi_stream kineto/vllm_decode_graph_replay "
    "kineto/gpu_user_annotation t4_mlp_amp/fp32 odd/gpu_only symptoms/s23_no_profilerstep"
)
SHOWN, SAME = 50, 1e-6
WIDE, WIDER = 2.0, 1.2  # high / low of a wide interval; and how much the median may grow
FARTHER = "FARTHER from the truth"
HEADLINE = "/predicted_ns", "/replayed_ns", "refused"  # what a row is printed for first
Found = dict[str, dict[str, dict[str, Any]]]  # answers by trace and question
KEPT_KEYS = re.compile(  # a step and its interval, counts and memory; of `rank`, `explain` and `sweep` too
    r"(measured|replayed|predicted|predicted_low|predicted_high|before|after|low|high|step|alone)_ns$|error$"
    r"|/(changed|inserted|removed|tasks|edges|speedup|efficiency|throughput)$|/memory/|_bytes$|/avoidable/[^/]*/\w+_ns$"
)
NOT_KEPT = re.compile(r"/(curves|largest|steps|before|after|by_\w+)/|typical_")


@dataclass
class Totals:
    """What a comparison came to; pairs are before and now."""

    equal: int = 0
    rows: list[Row] = field(default_factory=list)
    only: Counter[str] = field(default_factory=Counter)  # keys that one side lacks
    refused: list[int] = field(default_factory=lambda: [0, 0])
    widths: list[tuple[float, float]] = field(default_factory=list)
    known: list[tuple[float, float]] = field(default_factory=list)  # widths where the truth is known
    lost: list[str] = field(default_factory=list)  # answers that were right and narrow
    off: list[tuple[float, float]] = field(default_factory=list)
    holds: list[tuple[bool, bool]] = field(default_factory=list)


def main() -> int:
    """Ask, compare and print; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", metavar="REVISION", help="compare with this revision as well")
    parser.add_argument(
        "--keep", metavar="REVISION", help="keep the answers of this revision about the sample"
    )
    parser.add_argument("--traces", type=Path, action="append", help="a folder or a trace, not all there are")
    parser.add_argument("--sample", action="store_true", help="a few small traces")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "daydream-answers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all answers about a trace")
    options = parser.parse_args()
    options.cache = options.cache.absolute()
    kept: dict[str, Any] = json.loads(gzip.decompress(KEPT.read_bytes())) if KEPT.exists() else {}
    kept = kept or {"truths": public_truths(), "traces": {}}
    truths = known_truths(options.cache, kept["truths"])
    traces = chosen(options.traces, options.cache, sample=options.sample or options.keep is not None)
    asking = Asking(options, traces, truths)
    if options.keep:
        keep(asking, options.keep, kept["truths"])
        return 0
    now = asking.answers(working_tree(options.cache))
    known = {
        name: one["answers"]
        for name, one in kept["traces"].items()
        if name in traces and one["sha"] == sha(traces[name])
    }
    bad = report(f"{kept['revision']}, as kept", compare(known, now, truths)) if known else 0
    if options.against:
        before = asking.answers(checkout(options.cache, options.against))
        bad += report(options.against, compare(before, now, truths))
    return int(bad > 0)


# -- what is asked of what ---------------------------------------------------------------------------


def chosen(places: list[Path] | None, cached: Path, *, sample: bool) -> dict[str, Path]:
    """Return the place of each trace by its name, the smallest first."""
    found = set() if places else set(machines(cached))
    own = [path for name in OWN.split() for path in ROOT.glob(name) if path.is_dir()]
    for place in places or [*own, SHARED]:
        found |= {Path.cwd() / place} if place.is_file() else set()
        for folder in [place, *(path for pattern in FOLDERS.split() for path in place.glob(pattern))]:
            for path in folder.iterdir() if folder.is_dir() else []:
                is_one = any(path.glob("rank*0.json.gz")) if path.is_dir() else TRACE.search(path.name)
                if is_one and not NO_TRACE.search(str(path)):
                    found.add(Path.cwd() / path)
    names = {
        f"machine/{path.name}" if path.is_relative_to(cached) else os.path.relpath(path, ROOT): path
        for path in sorted(found, key=_bytes)
    }
    sampled = re.compile(f"(^|/)({'|'.join(SAMPLE.split())})\\.")
    return {name: path for name, path in names.items() if not sample or sampled.search(name)}


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path.iterdir() if path.is_dir() else [path]))


@cache
def sha(path: Path) -> str:
    """Return a short hash of a trace's content; JSON's gzip header may differ."""
    digest = hashlib.sha256()
    for each in sorted(path.iterdir()) if path.is_dir() else [path]:
        content = each.read_bytes()
        digest.update(gzip.decompress(content) if each.suffix == ".gz" else content)
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Asking:
    """The traces and what is asked of them."""

    options: argparse.Namespace
    traces: dict[str, Path]
    truths: dict[str, list[Truth]]

    def answers(self, code: Path) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the answers of a checkout by trace and question, of the traces that answer in time."""
        with ThreadPoolExecutor(self.options.processes) as pool:
            found = pool.map(partial(self._of_trace, code), self.traces)
            return {name: answers for name, answers in zip(self.traces, found, strict=True) if answers}

    def _of_trace(self, code: Path, name: str) -> dict[str, dict[str, Any]]:
        more = [(truth.name, truth.options) for truth in self.truths.get(name, [])]
        asking = json.dumps({"more": more, "all_too": not REPEATS.search(name)})
        worker = HERE / "asked.py"
        key = hashlib.sha256(worker.read_bytes() + asking.encode() + name.encode()).hexdigest()[:12]
        out = code / "answers" / f"{key}-{sha(self.traces[name])}.json"
        if not out.exists():
            out.parent.mkdir(exist_ok=True)
            settings = {"PYTHONPATH": str(code), "DAYDREAM_CACHE": "off"}
            settings |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
            said = out.with_suffix(".said")
            command = [sys.executable, str(worker), str(self.traces[name]), str(out), asking]
            how: dict[str, Any] = {"env": {**os.environ, **settings}, "cwd": code}
            try:
                with said.open("w") as errors:
                    subprocess.run(command, check=True, stderr=errors, timeout=self.options.limit, **how)
            except subprocess.SubprocessError as error:
                why = f"{type(error).__name__} {said.read_text()[-2000:]}"
                print(f"{name}: {why}", file=sys.stderr, flush=True)
                return {}
        document = json.loads(out.read_text(encoding="utf-8"))
        print(f"{name}: {document['seconds']:.0f} s", file=sys.stderr, flush=True)
        return dict(document["answers"])


# -- the code that answers ---------------------------------------------------------------------------


def checkout(cached: Path, revision: str) -> Path:
    """Return a folder with the code of a revision, its compiled loops built."""
    what = ["daydream", "optimizations", "setup.py", "pyproject.toml", "README.md"]
    packed = subprocess.run(["git", "archive", revision, *what], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        return settled_in(cached, Path(folder), build=True)


def working_tree(cached: Path) -> Path:
    """Return a copy of the code of this working tree, with its compiled loops as they are built."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("daydream", "optimizations"):
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        return settled_in(cached, Path(folder), build=False)


def settled_in(cached: Path, code: Path, *, build: bool) -> Path:
    """Move code to its place in the cache, which its content names, unless it is there."""
    digest = hashlib.sha256()
    for path in sorted(path for name in ("daydream", "optimizations") for path in (code / name).rglob("*")):
        if path.is_file() and path.suffix not in {".pyc", ".so", ".pyd"}:
            digest.update(str(path.relative_to(code)).encode() + path.read_bytes())
    home = cached / digest.hexdigest()[:16]
    if not (home / "daydream").exists():
        (code / "daydream" / "optimizations").symlink_to("../optimizations")
        if build:
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(command, cwd=code, capture_output=True, check=False)
        shutil.copytree(code, home, symlinks=True, dirs_exist_ok=True)
    return home


def keep(asking: Asking, revision: str, public: dict[str, list[list[Any]]]) -> None:
    """Keep the answers of a revision: numbers alone, with seven digits."""
    found = asking.answers(checkout(asking.options.cache, revision))
    numbers = {
        name: {question: _numbers(one) for question, one in each.items()} for name, each in found.items()
    }
    traces = {name: {"sha": sha(asking.traces[name]), "answers": numbers[name]} for name in sorted(numbers)}
    named = subprocess.check_output(["git", "rev-parse", "--short=8", revision], cwd=ROOT, text=True).strip()
    document = {"revision": named, "truths": public, "traces": traces}
    KEPT.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0))


def _numbers(answer: dict[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        return {"refused": 1}
    kept = {key: value for key, value in answer.items() if KEPT_KEYS.search(key) and not NOT_KEPT.search(key)}
    return {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in kept.items()}


# -- comparing ---------------------------------------------------------------------------------------


def compare(before: Found, now: Found, truths: dict[str, list[Truth]]) -> Totals:
    """Return what became of all answers about traces that were answered about before."""
    totals = Totals()
    for trace, answers in before.items():
        measured = {asked(truth.name, truth.options): truth for truth in truths.get(trace, [])}
        there = now.get(trace, {})
        for question, answer in answers.items() if there else []:
            new = there.get(question, {"refused": "not asked any more"})
            _compare(totals, Row(trace, question, "", None, None), answer, new, measured.get(question))
        if not there:
            totals.rows.append(Row(trace, "all questions", "refused", "answered", "no answer"))
    return totals


def _compare(totals: Totals, row: Row, old: Answer, new: Answer, truth: Truth | None) -> None:
    """Add one answer to the totals, with a row for each difference."""
    totals.refused[0] += "refused" in old
    totals.refused[1] += "refused" in new
    was, now = _width(old), _width(new)
    if was and now:
        totals.widths.append((was, now))
        totals.known += totals.widths[-1:] if truth else []
    if truth and was and was < WIDE and truth.held(old) and not (now and now < WIDE):
        what = f"{now:.2f}" if now else "no answer"
        totals.lost.append(f"{row.trace} | {row.question} | high / low: {was:.2f} -> {what}")
    here, there = (truth.off(answer) if truth else None for answer in (old, new))
    farther = ""
    if truth and here is not None and there is not None:
        totals.off.append((here, there))
        totals.holds.append((truth.held(old), truth.held(new)))
    if here is not None and (there is None or (was and now and there - here > np.log(was) / 2)):
        farther = f"{FARTHER}: {here:.1%} -> {'no answer' if there is None else f'{there:.1%}'}"
    for key, before, after in _differences(totals, old, new):
        one = replace(row, key=key, before=before, now=after)
        owner = farther or next((owner.__name__ for owner in OWNERS if owner(one)), "")
        totals.rows.append(replace(one, owner=owner))


def _width(answer: Answer) -> float | None:
    """Return the ratio of the ends of an answer's interval, None where it has none."""
    low, high = answer.get("/predicted_low_ns"), answer.get("/predicted_high_ns")
    return high / max(low, 1) if low is not None and high else None


def _differences(totals: Totals, old: Answer, new: Answer) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys whose values differ, with both; count what is equal and what one side lacks."""
    if "refused" in old or "refused" in new:
        crashed = str(new.get("refused", "")).startswith("CRASH")
        if crashed or ("refused" in old) != ("refused" in new):
            yield "refused", old.get("refused", "answered"), new.get("refused", "answered")
        return
    parents = {key.rpartition("/")[0] for key in new}
    for key, value in old.items():
        if key in new:
            if same(value, new[key]):
                totals.equal += 1
            else:
                yield key, value, new[key]
        elif key.rpartition("/")[0] in parents:
            totals.only[re.sub("/[^/]*[^a-z_/][^/]*", "/*", key)] += 1
        else:
            yield key, value, "not there"


def same(old: Any, new: Any) -> bool:
    """Whether two values are equal but for their last digit."""
    if old is None or new is None:
        return old is new
    rounding = 1.0 if isinstance(old, int) and isinstance(new, int) else 1e-9
    return bool(abs(old - new) <= max(1e-6 * max(abs(old), abs(new)), rounding))


def report(title: str, totals: Totals) -> int:
    """Print what a comparison came to; return how many answers have a difference that nobody owns."""
    owned = Counter(row.owner for row in totals.rows if row.owner and not row.owner.startswith(FARTHER))
    bad: dict[tuple[str, str], list[Row]] = {}
    for row in totals.rows:
        if row.owner not in owned:
            bad.setdefault((row.trace, row.question), []).append(row)
    print(f"\n== against {title}: {totals.equal:,} values are equal, {owned.total():,} differ and are owned")
    for owner in OWNERS:
        if owned[owner.__name__]:
            print(f"  {owned[owner.__name__]:>7,} {(owner.__doc__ or '').splitlines()[0]}")
    for key, count in totals.only.most_common(SHOWN):
        print(f"  {count:>7,} no longer there: {key}")
    print("  refused: {:,} -> {:,}".format(*totals.refused))
    if totals.widths:
        print("  median high / low of intervals: {:.3f} -> {:.3f}".format(*np.median(totals.widths, axis=0)))
    if totals.known:
        before, after = np.median(totals.known, axis=0)
        print(f"  where the truth is known: {before:.3f} -> {after:.3f}, at most {WIDER * before:.3f}")
        print(f"  right and narrower than {WIDE:g} before, now wider or unanswered: {len(totals.lost)}")
        print(*(f"    {line}\n" for line in totals.lost), sep="", end="")
    if totals.off:
        moved = np.diff(totals.off, axis=1)
        nearer, farther = (moved < -SAME).sum(), (moved > SAME).sum()
        print(f"  of {len(moved):,} whose truth is known {nearer} are nearer, {farther} farther")
        print("  error: median {:.2%} -> {:.2%}, ".format(*np.median(totals.off, axis=0)), end="")
        print("90th percentile {:.2%} -> {:.2%}, ".format(*np.percentile(totals.off, 90, axis=0)), end="")
        print("inside the interval {} -> {}".format(*np.sum(totals.holds, axis=0)))
    print(f"  owned by nobody: {sum(map(len, bad.values())):,} values of {len(bad):,} answers")
    for (trace, question), rows in sorted(bad.items())[:SHOWN]:
        first = min(rows, key=lambda row: (row.key not in HEADLINE, row.key))
        more = f", and {len(rows) - 1} more" if rows[1:] else ""
        change = f"{first.key.strip('/')}: {_shown(first.before)} -> {_shown(first.now)}"
        print(f"  {trace} | {question} | {change}{more} {first.owner}")
    return len(bad)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)[:150]


if __name__ == "__main__":
    sys.exit(main())
