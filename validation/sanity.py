"""Every optimization on every trace, checked against laws that hold whatever the truth is.

    python validation/sanity.py --traces ../shared/traces                     all of them, by hand: about 30 minutes
    python validation/sanity.py --traces ../shared/traces --sample            a few small ones, as CI does
    python validation/sanity.py --traces ../shared/traces --write docs/evaluation

Nothing here knows what a change would really give. A broken law is an answer that no expert believes: a saving larger
than what was touched, an optimization of something that is not there, a busy device that gains nothing
when its kernels are twice as fast, an answer that depends on where a step is taken to begin. Exits with 1 if any is.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from evaluate import CASES, typed_as, write
from laws import (
    ROUNDING,
    a_busy_device_gains_from_faster_kernels,
    a_device_gains_what_it_was_busy,
    a_factor_of_one_changes_nothing,
    a_faster_device_is_never_slower,
)

import daydream
from daydream.errors import DaydreamError
from daydream.graph.calls import device_work
from daydream.graph.graph import Graph
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.report.views.explanation import verdict
from daydream.simulate.critical_path import Bound
from daydream.transforms.registry import names

SAMPLE = (
    "kineto/h100_bert_small_inference", "kineto/rtx2080ti_linear_40_iterations", "kineto/gpu_user_annotation",
    "kineto/vllm_decode_graph_replay", "kineto/mi300x_torch_compile_triton", "pairs/t4_mlp_amp/fp32",
    "pairs/hopper_tf32/gh200_fp32", "kineto/v100_dlrm_4_of_8_ranks", "odd/gpu_only", "odd/cpu_only",
)  # fmt: skip
FOLDERS = (
    "kineto", "nsys*", "pairs/*", "odd", "cases", "rocprof", "formats/kineto_*", "formats/mtia", "formats/ascend", "formats/jax",
    "formats/rocprofv3",
)  # fmt: skip
TRACE = re.compile(
    r"(?<!cluster_communication)\.json(\.gz)?$|\.sqlite(\.gz)?$|\.pb(\.gz)?$|kernel_trace\.csv(\.gz)?$"
)
INCREDIBLE = 8.0  # times faster, by an optimization that is no `scale`: nobody measured such a step
AGREE = 0.03  # answers from other step boundaries
CONTRADICTS = 0.6  # of the critical path on the other side, and the sentence does not say so
ASKED: dict[str, dict[str, Any]] = {**CASES["examples"], "ddp": {"gradient_mb": 100.0}}
LONGEST_REASON = 200


@dataclass(frozen=True)
class Finding:
    """A law that an answer breaks."""

    trace: str
    asked: str
    law: str
    said: str


@dataclass
class Judged:
    """One trace: what became of its questions; `rows` are of the table of optimizations."""

    trace: str
    trains: bool = False
    rows: list[dict[str, str]] = field(default_factory=list)
    steps: int = 0
    answered: int = 0
    refused: int = 0
    unknown: int = 0
    seconds: float = 0.0
    why_not: str = ""
    findings: list[Finding] = field(default_factory=list)

    def found(self, asked: str, law: str, said: str) -> None:
        """Note a broken law."""
        self.findings.append(Finding(self.trace, asked, law, said))


def sources(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every trace below a folder; ranks that lie in one folder are one."""
    for pattern in FOLDERS:
        for place in sorted(folder.glob(pattern)):
            for path in sorted(place.iterdir()):
                if path.is_dir() or TRACE.search(path.name):
                    yield re.split(r"\.(?:json|sqlite|csv)\b", str(path.relative_to(folder)))[0], path


def judge(name: str, path: Path, chosen: Sequence[str]) -> Judged:
    """Return what the laws say of all answers about a trace."""
    found = Judged(name)
    began = time.process_time()
    try:
        replay = daydream.replay(path)
    except DaydreamError as error:
        found.why_not = " ".join(str(error).split())
        return found
    except Exception:  # noqa: BLE001 - any crash is a finding
        found.found("replay", "no crash", traceback.format_exc().strip().splitlines()[-1])
        return found
    found.steps = len(replay.steps)
    found.trains = bool(len(replay.graph.select(phase="backward")))
    for each in chosen:
        asked = typed_as(each, ASKED.get(each, {}))
        shown = why_not = ""
        try:
            answer = daydream.whatif(replay, each, **ASKED.get(each, {}))
            answer.to_json()
            shown = f"{answer.speedup:.2f}x, {answer.bound[0]}" if answer.speedup else "nothing left"
            found.answered += 1
            found.unknown += answer.predicted_ns is None
            for law in OF_ANSWERS:
                if said := law(each, answer):
                    found.found(asked, law.__name__.replace("_", " "), said)
        except DaydreamError as error:
            found.refused += 1
            why_not = " ".join(str(error).split())
            why_not = why_not if len(why_not) <= LONGEST_REASON else why_not.split(". ")[0][:LONGEST_REASON]
        except Exception as error:  # noqa: BLE001 - any crash is a finding
            why_not = f"crash: {error!r}"
            found.found(asked, "no crash", traceback.format_exc().strip().splitlines()[-1])
        row = {"optimization": asked, "trace": name, "speedup, bound by": shown, "why not": why_not}
        found.rows.append(row)
    for of_trace in OF_TRACES:
        try:
            for asked, said in of_trace(replay, path):
                found.found(asked, of_trace.__name__.replace("_", " "), said)
        except Exception:  # noqa: BLE001 - any crash is a finding
            found.found(of_trace.__name__, "no crash", traceback.format_exc().strip().splitlines()[-1])
    found.seconds = time.process_time() - began
    return found


# -- laws of single answers -------------------------------------------------------------------------


def figures_agree(_name: str, answer: Prediction) -> str:
    """An interval holds its prediction, the speedup is their ratio, and all of them are missing together."""
    told = [answer.predicted_ns, answer.predicted_low_ns, answer.predicted_high_ns, answer.speedup]
    if None in told:
        there = sum(each is not None for each in told)
        return "" if not there and answer.reason else f"{there} of 4 figures are known: {told}"
    now, low, high = answer.simulated_ns, *(float(each or 0) for each in told[1:3])
    if not low <= now <= high or not all(map(math.isfinite, (low, now, high))):
        return f"{low} to {high} does not hold {now}"
    return ""


def no_gain_beyond_what_is_touched(name: str, answer: Prediction) -> str:
    """A step gets no shorter than by the time that was taken away, unless waits were taken away too."""
    saved = answer.replayed_ns - answer.simulated_ns
    if saved <= ROUNDING * answer.replayed_ns or name == "scale" or _orders_anew(answer):
        return ""
    taken = _taken_away_ns(answer)
    if saved <= taken * (1 + ROUNDING) + ROUNDING * answer.replayed_ns:
        return ""
    return f"saves {_ms(saved)} of {_ms(answer.replayed_ns)}, and only {_ms(taken)} were taken away"


def nothing_absent(name: str, answer: Prediction) -> str:
    """An optimization changes nothing where what it is about does not occur."""
    there = PRESENT.get(name)
    return (
        "" if there is None or there(answer.replay.graph) else f"{name} is answered, but there is none of it"
    )


def credible(name: str, answer: Prediction) -> str:
    """No change of code makes a step ten times faster and more."""
    if name == "scale" or answer.speedup is None or answer.speedup <= INCREDIBLE:
        return ""
    return f"{answer.speedup:,.1f}x"


def _orders_anew(answer: Prediction) -> bool:
    """Tell whether the change moves work to other lanes or takes waits away, so that more may be saved."""
    before, after = answer.replay.graph, answer.graph
    size = before.size
    both = before.alive & after.alive[:size]
    if (before.columns["lane"] != after.columns["lane"][:size])[both].any():
        return True
    if (before.columns["order"] != after.columns["order"][:size])[both].any() or after.scheduled:
        return True
    gone = before.alive & ~after.alive[:size]
    waiting = np.concatenate([
        before.syncs["task"], before.links["src"], before.links["dst"], before.waits["wait"],
    ])  # fmt: skip
    tables = any(
        len(getattr(before, table)) > len(getattr(after, table)) for table in ("syncs", "waits", "links")
    )
    return tables or bool(gone[waiting[waiting >= 0]].any())


def _taken_away_ns(answer: Prediction) -> float:
    """Return by how much all tasks together got shorter, in ns a step."""
    before, after = answer.replay.graph, answer.graph
    size = before.size
    steps = [step for step in before.steps if step.get("covered")]
    begin = min((step["completion_ns"] - step["measured_ns"] for step in steps), default=0)
    lasting = before.columns["duration_ns"] + before.columns["gap_ns"]
    counts = before.alive & (before.columns["measured_start_ns"] + lasting > begin)
    was = before.columns["duration_ns"] + before.columns["gap_ns"] + before.columns["latency_ns"]
    now = after.columns["duration_ns"] + after.columns["gap_ns"] + after.columns["latency_ns"]
    now = np.where(after.alive, now, 0)[:size]
    return float(np.maximum(was - now, 0)[counts].sum()) / max(len(steps), 1)


def _named(pattern: str) -> Callable[[Graph], bool]:
    return lambda graph: bool(len(graph.select().where(name=pattern)))


def _kinds(kind: str) -> Callable[[Graph], bool]:
    return lambda graph: bool(len(graph.select(kind=kind)))


def _updates(graph: Graph) -> bool:
    return bool(len(graph.select(phase="optimizer")))


def _backward(graph: Graph) -> bool:
    return bool(len(graph.select(phase="backward")))


def _device(graph: Graph) -> bool:
    return bool(device_work(graph)[graph.alive].any())


PRESENT: dict[str, Callable[[Graph], bool]] = {
    **dict.fromkeys(("fused-adam", "fused-optimizer", "foreach-optimizer", "offload-optimizer"), _updates),
    **dict.fromkeys(("checkpointing", "freeze", "ddp", "gradient-accumulation", "vdnn", "gist"), _backward),
    **dict.fromkeys(("amp", "tf32", "fp8", "gpu", "cuda-graphs"), _device),
    **dict.fromkeys(
        ("network", "no-stragglers", "bucket-size", "overlap", "compression"), _kinds("collective")
    ),
    **dict.fromkeys(("pcie", "pinned-memory"), _kinds("memcpy")),
    "channels-last": _named(r"(?i)conv|xmma|wgrad|dgrad|igemm|cudnn|miopen|winograd|scudnn|implicit"),
    "restructured-batchnorm": _named(r"(?i)batch_?norm|bn_"),
    "fused-softmax": _named(r"(?i)softmax"),
}


# -- laws of a trace --------------------------------------------------------------------------------


def explain_and_rank_agree(replay: Replay, _path: Path) -> Iterator[tuple[str, str]]:
    """A change that both name has one figure, and what gains is not called not worth it."""
    try:
        ranking = daydream.rank(replay, pairs=0, with_curves=False)
        explanation = daydream.explain(replay)
    except DaydreamError:
        return
    ranked = {each.optimization: each for each in ranking.optimizations}
    for cost in explanation.avoidable:
        for answer in cost.whatifs:
            other = ranked.get(answer.optimization)
            if other is None or other.options != answer.options:
                continue
            if answer.predicted_ns is None or other.predicted_ns is None:
                continue
            before = max(ranking.replayed_ns, 1)
            one, two = answer.predicted_ns / before, other.predicted_ns / before
            if abs(one - two) > ROUNDING:
                yield answer.optimization, f"explain leaves {one:.1%} of the step, rank {two:.1%}"
    if explanation.bound != ranking.bound:
        yield "bound", f"explain says {explanation.bound}, rank {ranking.bound}"
    alike = {"CPU": "CPU", "data loading": "CPU", "GPU": "GPU", "copies": "copies"}
    side = alike.get(explanation.bound)
    opposite = {"CPU": Bound.GPU, "GPU": Bound.CPU}.get(side or "", Bound.NOTHING)
    table, sentence = explanation.bound_share(opposite), verdict(explanation)
    if table > CONTRADICTS and "critical path runs" not in sentence:
        yield "bound", f"the sentence says {explanation.bound}, the table {table:.0%} {opposite}"
    for text in (repr(ranking), str(explanation.to_json())):
        if "nan" in text.split() or "inf" in text.split():
            yield "text", "a figure is no number"


def boundaries_do_not_matter(replay: Replay, path: Path) -> Iterator[tuple[str, str]]:
    """An answer from some of the steps is that from all, where these are alike."""
    steps = [number for number, step in enumerate(replay.graph.steps) if step.get("covered")]
    times = [replay.graph.steps[number]["measured_ns"] for number in steps]
    ranks = {step.get("rank", 0) for step in replay.graph.steps}
    if len(steps) < 4 or len(ranks) > 1 or max(times) > 1.1 * min(times):
        return
    try:
        whole = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    except DaydreamError:
        return
    graph = daydream.build(daydream.load(path))
    for number in (steps[0], steps[-1]):
        graph.steps[number]["covered"] = False
    part = daydream.whatif(daydream.replay(graph), "scale", on="gpu", factor=0.5)
    one, two = (each.replayed_ns / max(each.simulated_ns, 1) for each in (whole, part))
    if abs(one / two - 1) > AGREE:
        yield "scale on gpu 0.5", f"{one:.3f}x from {len(steps)} steps, {two:.3f}x without the outer two"


OF_ANSWERS = (figures_agree, no_gain_beyond_what_is_touched, nothing_absent, credible)
OF_TRACES = (
    a_factor_of_one_changes_nothing,
    a_faster_device_is_never_slower,
    a_busy_device_gains_from_faster_kernels,
    a_device_gains_what_it_was_busy,
    explain_and_rank_agree,
    boundaries_do_not_matter,
)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f} ms"


def tables(found: Sequence[Judged]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield what became of every trace, and what each optimization gives on those that train."""
    titles = ("trace", "steps", "answered", "cannot be predicted", "refused", "laws broken")
    rows = []
    for each in found:
        steps = each.why_not.partition(". ")[0] or each.steps
        cells = each.trace, steps, each.answered, each.unknown, each.refused, len(each.findings)
        rows.append(dict(zip(titles, map(str, cells), strict=True)))
    yield "laws", rows
    mine = [each for each in found if each.trains and each.trace.startswith(("kineto/", "nsys/"))]
    yield "optimizations", [row for each in mine for row in each.rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the traces; print or write the tables; return 1 if a law is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of public traces")
    parser.add_argument("--sample", action="store_true", help="a few small traces only")
    parser.add_argument("--only", default="", help="traces whose name holds this text")
    parser.add_argument("--write", type=Path, help="the folder of CSV files; without it findings are printed")
    options = parser.parse_args(arguments)
    found = []
    for name, path in sources(options.traces):
        if options.only not in name or (options.sample and name not in SAMPLE):
            continue
        found.append(one := judge(name, path, names()))
        said = one.why_not or f"{one.answered} answers, {len(one.findings)} broken laws"
        print(f"{name}: {said} ({one.seconds:.0f} s)", file=sys.stderr)
        for finding in one.findings:
            print(f"  {finding.asked}: {finding.law}: {finding.said}", file=sys.stderr)
    for table, rows in tables(found) if options.write else ():
        write(options.write, table, rows)
    return int(any(each.findings for each in found))


if __name__ == "__main__":
    sys.exit(main())
