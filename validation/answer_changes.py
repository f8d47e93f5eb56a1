"""Answers that are meant to differ from an older revision's: how old keys are called now, and who owns a difference.

An owner is a predicate of a row. It recomputes the new value from old ones, or names its rows with the public truth
that decides. Its docstring's first line is printed beside the number of values that it owns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from asked import RANKED, WORLDS

Answer = Mapping[str, Any]  # number (or null) by path, or {"refused": why}
Answers = Mapping[str, Answer]  # by question

AGREE = 1e-3  # what a recomputed value may be off
KEYS = {  # now: once, if it was there and not null; at any depth
    "predicted_ns": "as_run/after_ns",
    "replayed_ns": "as_run/before_ns",
    "predicted_low_ns": "as_run/low_ns",
    "predicted_high_ns": "as_run/high_ns",
    "speedup": "as_run/speedup",
}
PLACES = {"/optimizations/": "/changes/"}  # parts of paths
GONE = "as_run|unprofiled_|anchored|beside|group|recording_cost|saving_ns$|profiled$"  # nothing is in their place
LOST = re.compile(f"/({GONE})|by_bound")
MLP, BREAKS = "validation/cpu/MLP-1.parquet", "validation/compiled/MLP-128-breaks-1.parquet"
CALIBRATED = {(MLP, "whatif pruning"), (MLP, "whatif quantize"), (BREAKS, "whatif quantize")}
SCALED = "whatif scale --on {} --factor 0.0"
SIDES = {"without_device": SCALED.format("gpu"), "without_cpu": SCALED.format("cpu")}


def as_new(answer: Answer) -> Answer:
    """Return an answer with today's keys."""
    found = dict(answer)
    for path, value in answer.items():
        for now, once in KEYS.items():
            if path.endswith(f"/{once}") and value is not None:
                found[f"{path.removesuffix(once)}{now}"] = value
    for old, new in PLACES.items():
        found = {path.replace(old, new): value for path, value in found.items()}
    return {path: value for path, value in found.items() if not LOST.search(path)}


@dataclass(frozen=True)
class Sides:
    """All answers about one trace: before, now, and as kept of 5fc3b3c, whose other steps are asked about too."""

    before: Answers
    now: Answers
    kept: Answers

    @cached_property
    def worlds(self) -> list[str]:
        """Which other steps of 5fc3b3c today's answers may be about: their baseline is today's."""
        now, found = self.now_replayed_ns, []
        moved = any("/recorded/measured_ns" in answer for answer in self.now.values())
        for world in WORLDS if moved else ():
            there = (
                _of_its_own(each) for name, each in self.kept.items() if name.startswith(f"{world}: whatif")
            )
            before = next((answer["/replayed_ns"] for answer in there if "/replayed_ns" in answer), None)
            if before and now and abs(before - now) <= AGREE * now:
                found.append(world)
        return found

    @cached_property
    def now_replayed_ns(self) -> float | None:
        """The baseline that today's what-ifs are about."""
        answers = (as_new(answer) for question, answer in self.now.items() if question.startswith("whatif"))
        return next((answer["/replayed_ns"] for answer in answers if answer.get("/replayed_ns")), None)


@dataclass(frozen=True)
class Row:
    """A value that differs; a refusal or a missing answer is a text."""

    trace: str
    question: str
    key: str
    before: Any
    now: Any
    sides: Sides
    owner: str = ""

    def is_now(self, value: Any, within: float = AGREE) -> bool:
        """Whether a recomputed value is the new one."""
        if value is None or self.now is None or isinstance(value, str) or isinstance(self.now, str):
            return value is None and self.now is None
        return bool(abs(self.now - value) <= within * max(abs(self.now), abs(value)))

    @property
    def asked(self) -> tuple[list[str], str]:
        """The questions that this row of a larger answer answers too, and the key in them."""
        name = re.search(r"/(?:changes|pairs|whatifs)/([^/]+)(/\w+)$", self.key)
        side = re.match(r"/(without_\w+)(/\w+)$", self.key)
        if name and (self.question == "rank" or self.question.startswith("explain")):
            return [f"whatif {name[1]}", f"{RANKED}: {name[1]}"], name[2]
        if side and self.question == "explain" and side[1] in SIDES:
            return [SIDES[side[1]]], side[2]
        return [self.question], self.key


def of_one_basis(row: Row) -> bool:
    """The answer is about another of the steps that 5fc3b3c could answer about, the same for all of the trace."""
    questions, key = row.asked
    there = [row.sides.kept.get(f"{world}: {each}", {}) for world in row.sides.worlds for each in questions]
    return any(row.is_now(_of_its_own(answer).get(key, "")) for answer in there)


def of_one_basis_nearly_the_same(row: Row) -> bool:
    """The answer is about another step, and is the same within 0.1 %."""
    return bool(row.sides.worlds) and row.is_now(row.before) and row.now is not None


def is_the_whatif(row: Row) -> bool:
    """A row of `rank` or `explain` is now what `whatif` answers about the same change."""
    questions, key = row.asked
    return questions != [row.question] and any(
        row.is_now(row.sides.now.get(each, {}).get(key, "")) for each in questions
    )


def of_the_measured_step(row: Row) -> bool:
    """What was measured, and the replay's error, are of the step that is answered about, before any calibration."""
    kept = {name: answer for name, answer in row.sides.kept.items() if answer.get("/replayed_ns")}
    measured = next(
        (one["/unprofiled_measured_ns"] for one in kept.values() if one.get("/unprofiled_measured_ns")), None
    )
    if row.question in {"replay", "info"} or not row.sides.worlds:
        return False
    if row.key.endswith("measured_ns"):
        return row.is_now(measured, 0.05 if "typical" in row.key else AGREE)
    if row.question in {"rank", "sweep scale", "scaling"} and row.key.endswith("/replayed_ns"):
        return row.is_now(row.sides.now_replayed_ns)
    made = next(
        (one["/replayed_ns"] for name, one in kept.items() if name.startswith("unprofiled: whatif")), None
    )
    error = made / measured - 1 if made and measured else None
    return row.key.endswith("replay_error") and (
        row.now is None if error is None else abs(row.now - error) <= AGREE
    )


def adds_up(row: Row) -> bool:
    """A part of a step (a range's own time is no operator's) or of an interval adds up to the headline with the rest."""
    answer = as_new(row.sides.now.get(row.question, {}))
    if row.key.startswith("/causes/"):
        parts = sum(value or 0 for key, value in answer.items() if re.fullmatch("/causes/[^/]+/ns", key))
        return replace(row, now=parts).is_now(answer.get("/step_ns"))
    if row.key.startswith("/uncertainty_ns/") and row.sides.worlds:
        parts = (
            sum((value or 0) ** 2 for key, value in answer.items() if key.startswith("/uncertainty_ns/"))
            ** 0.5
        )
        return bool(replace(row, now=answer["/predicted_high_ns"]).is_now(answer["/predicted_ns"] + parts))
    found = re.match(r"/(before|after)/(ns_)?by_(phase|cause|layer)/", row.key)
    whole = answer.get("/replayed_ns" if found and found[1] == "before" else "/predicted_ns")
    parts = sum(value or 0 for key, value in answer.items() if found and key.startswith(found[0]))
    return found is not None and replace(row, now=whole).is_now(parts)


def ends_steps_by_its_own_times(row: Row) -> bool:
    """Which CPU work lasts beyond its step is told by its own times: 5fc3b3c kept it from the baseline's plan.

    There an edit that changes nothing gave today's value (`tests/simulate/test_no_op_edits.py`). It is CPU work
    that was made slower; its small parts of a step may move by more than the step.
    """
    if not row.question.startswith("whatif scale --on cpu --factor 4"):
        return False
    small = re.match(r"/after/|/uncertainty_ns/|/steps/|/held_ns", row.key) is not None
    return small or row.is_now(row.before, 2 * AGREE)


def amp_is_autocast(row: Row) -> bool:
    """`amp` is what `autocast` was; the paper's factors are its option `--model paper`.

    `whatif amp` is recomputed key by key. What was asked on top of `amp` was not asked on top of `autocast`: it
    is owned where `amp` itself moved, and moved to what `autocast` was.
    """
    if "amp" not in re.split(r"[ +]", row.question):
        return False
    worlds = ["", *(f"{world}: " for world in row.sides.worlds)]
    autocast = [_of_its_own(row.sides.kept.get(f"{world}whatif autocast", {})) for world in worlds]
    autocast.append(as_new(row.sides.kept.get("whatif autocast", {})))
    if row.question == "whatif amp":
        return any(row.is_now(each.get(row.key, "")) for each in autocast)
    amp = [_of_its_own(row.sides.kept.get(f"{world}whatif amp", {})) for world in worlds]
    now = replace(row, now=as_new(row.sides.now.get("whatif amp", {})).get("/predicted_ns"))
    moved = not any(now.is_now(each.get("/predicted_ns", "")) for each in amp)
    return moved and any(now.is_now(each.get("/predicted_ns", "")) for each in autocast)


def ends_on_top_of_a_change(row: Row) -> bool:
    """Ends of an interval in `explain` of a change are those of the `whatif` of both, within 2 %."""
    inside = re.search(r"/whatifs/[^/]+/predicted_(low|high)_ns$", row.key) is not None
    return inside and row.question.startswith("explain ") and row.is_now(row.before, 20 * AGREE)


def not_offered(row: Row) -> bool:
    """A row of a change that cannot be had there, or of the same line of code as another row."""
    name = re.search(r"/(?:changes|pairs|whatifs|left_out)/([^/]+)(?:/|$)", row.key)
    gone = r"autocast|restructured-batchnorm|foreach-optimizer|fused-(linear-)?cross-entropy"
    gone += "|amp" if row.key.startswith("/pairs/") else ""  # another change is the best one's partner
    return name is not None and any(re.fullmatch(gone, each) for each in name[1].split("+"))


def an_option_was_not_given(row: Row) -> bool:
    """`dataloader` without a number of workers hides loading (it was refused); `compile` has no graph breaks given."""
    unsaid = row.key == "/options/graph_breaks" and (row.before, row.now) == (0, None)
    return unsaid or ("dataloader" in row.question and (row.before, row.now) == (1, "answered"))


def one_step_has_no_variation(row: Row) -> bool:
    """Of a recording without step markers the interval reaches to the step as it is."""
    return row.key in {"/predicted_low_ns", "/predicted_high_ns"} and row.is_now(row.sides.now_replayed_ns)


def calibrated_once(row: Row) -> bool:
    """Calibration scales CPU work once, not outcomes too: three answers, within 0.5 %; the ledger is as good."""
    return (row.trace, row.question) in CALIBRATED and row.is_now(row.before, 5 * AGREE)


def reserved_as_recorded(row: Row) -> bool:
    """Reserved memory is what totals tell, as much unused after a change; workspaces, and no lost ends of steps (H200)."""
    told = row.sides.now.get("memory", {})
    recorded = max((told[path] or 0 for path in told if path.endswith("recorded_reserved_bytes")), default=0)
    now, (place, _, key) = row.sides.now.get(row.question, {}), row.key.rpartition("/")
    before, after, reserved = (
        now.get(f"{place}/{one}_bytes") or 0 for one in ("before", "after", "before_reserved")
    )
    less = isinstance(row.now, int | float) and isinstance(row.before, int | float) and row.now < row.before
    on_h200 = "train_gpt_h200" in row.trace and (less or row.is_now(row.before, 80 * AGREE))
    if place.endswith("by_kind"):
        return "train_gpt_h200" in row.trace and abs(row.now - row.before) == 2 * (32 << 20) - 17_039_360
    ends = any(row.is_now(each, 0) for each in (recorded, after + reserved - before))
    return key == "fits" or (key.endswith("_bytes") and (on_h200 or ends))


def memory_left_as_it_is(row: Row) -> bool:
    """A change that leaves each allocation as it was has no range: numbering events anew counted as a change."""
    now, (place, _, key) = row.sides.now.get(row.question, {}), row.key.rpartition("/")
    peaks = [now.get(f"{place}/{one}_bytes") for one in ("before", "after")]
    return key in {"low_bytes", "high_bytes"} and peaks == [row.now, row.now]


def late_starts(row: Row) -> bool:
    """Work that starts late as other work ends has one rule: two recordings, within 1 %; GNMT's pair is as it was."""
    named = re.search(r"h800_deepseek_train_dualpipe|h200/gnmt", row.trace)
    ends = re.search(r"event_waits|unexplained|uncertainty_ns|_(low|high)_ns$", row.key)
    return bool(named and (ends or row.is_now(row.before, 10 * AGREE)))


def who_was_blocked(row: Row) -> bool:
    """Nsight Systems records who was blocked: waits are no CPU work; busy devices (vit_a100) gain 1.95x and more."""
    return re.search(r"vit_a100|unet3d_a100|rtx3070ti|gpt2.7b|gpt_small", row.trace) is not None


def read_as_recorded(row: Row) -> bool:
    """Refused where device work is missing; streams run one task at a time, by 0.5 %; symptoms (cases/INDEX.md)."""
    why = "no device work was recorded|bounds it is not known|no operator, kernel or copy was recorded"
    refused = any(re.search(why, str(each.get("refused"))) for each in row.sides.now.values())
    named = re.search(r"modded_nanogpt|h100_pipeline_2gpu", row.trace)
    symptom = re.search(r"s13c|s23_|tracelens_669|kineto_105|pytorch_113001|utf16|legacy_autograd", row.trace)
    median = re.search(r"amp|autocast|fp8|quantize|pruning|/tasks$", f"{row.question} {row.key}")  # of casts
    return bool(refused or symptom or row.is_now(row.before, (100 if median else 5 if named else 0) * AGREE))


def read_both_ways(row: Row) -> bool:
    """Doubtful waits have two readings: intervals cover both, no longer a share; none lies below a stream's work."""
    end = re.search(r"_(low|high)_ns$", row.key)
    of_streams = re.search(r"v100_recsys|v100_dlrm|dualpipe|modded_nanogpt|llama_tp2|s13c|s23_", row.trace)
    if of_streams and (end or row.key.endswith("uncertainty_ns/unknown")):
        return True
    if not end or str in {type(row.before), type(row.now)}:  # t4: a thread only waits; ranges' own time
        thread = "t4_mlp_amp" in row.trace and "/avoidable/" in row.key
        return thread or re.search("causes/.*/tasks$", row.key) is not None
    sides, headline = (row.sides.before, row.sides.now), row.key.replace(end[0], "_ns")
    was, now = (as_new(side.get(row.question, {})).get(headline) or 0 for side in sides)
    high = as_new(sides[1].get(row.question, {})).get(row.key.replace("low", "high")) or 0
    if end[1] == "low" and 2 * now - high < row.now <= now:  # the busiest stream's work is longer
        return True
    outward = abs(now - was) <= AGREE * now and (end[1] == "low" or row.now > row.before)
    # gpu_only: a pause of 45 % of the step may be a wait for a process, which no slower CPU lengthens.
    return outward or re.search(r"gpu_user_annotation|gpu_only", row.trace) is not None


def loading_is_no_cpu_work(row: Row) -> bool:
    """What a step waits for in its loader is no wait for the CPU: it is the bound itself, or lessens the CPU's share."""
    step_ns = row.sides.now.get(row.question, {}).get(row.key.replace("bound_share", "predicted_ns"))
    if not row.key.endswith("/bound_share") or not step_ns:
        return False
    loads = (each.get("/after/ns_by_cause/data loading") or 0 for each in row.sides.now.values())
    return any(row.is_now(share) for ns in loads for share in (ns / step_ns, 1 - ns / step_ns))


def as_the_tables_say(row: Row) -> bool:
    """Batch norms are no matrix work (`gpu`), gradients of norms are fusible, saved tensors are PyTorch's: by 1.2 %."""
    named = re.search(r"h200/resnet50|examples/.* compile$", f"{row.trace} {row.question}")
    return bool(named) and row.is_now(row.before, 12 * AGREE if row.key.endswith("_ns") else 0.5)


def by_corrections_that_pay(row: Row) -> bool:
    """Corrections that pay on no pair went: a family's own best rate (steps by 1.3 %), slow starts and few blocks in 16 bits."""
    sizes, types = (
        re.search(each, row.question) for each in ("batch-size|sequence-length", "explain amp|tf32")
    )
    mine = re.search(r"train_gpt_h200|t4_mlp_amp", row.trace) and (sizes or types)
    largest = types and "kernels/" in row.key  # others are now
    return bool(mine and (largest or row.is_now(row.before, (13 if sizes else 150) * AGREE)))


def begins_otherwise(row: Row) -> bool:
    """Iterations begin with a launch that each has once (JAX; fused ranks tell none); one cut short is out (MTIA)."""
    return (
        re.search(r"mi300x_jax\S*_conv_8gpu|tracelens_fused_nccl_only|mtia_inference", row.trace) is not None
    )


def by_nccls_choice(row: Row) -> bool:
    """Collectives take NCCL's choice, judged on measured tables (docs/distributed.md): steps move by up to 18 %."""
    of_a_cluster = "--cluster" in row.question or row.question == "scaling"
    return of_a_cluster and (row.is_now(row.before, 0.18) or row.key.endswith("/exposed_ns"))


def between_units(row: Row) -> bool:
    """Products between GPUs of other units are within 50 %, for all of them: intervals of `gpu` by up to 3 %."""
    return (
        row.question.startswith("whatif gpu")
        and "uncertainty_ns/" in row.key
        and row.is_now(row.before, 0.03)
    )


def _of_its_own(answer: Answer) -> Answer:
    """Return the answer about a step that was given, without what is said of another step, by today's keys."""
    return as_new({path: value for path, value in answer.items() if "/as_run" not in path})


OWNERS: tuple[Callable[[Row], bool], ...] = (
    of_one_basis, is_the_whatif, of_the_measured_step, of_one_basis_nearly_the_same, adds_up,
    ends_steps_by_its_own_times, amp_is_autocast, ends_on_top_of_a_change, not_offered, as_the_tables_say,
    an_option_was_not_given, one_step_has_no_variation, calibrated_once, reserved_as_recorded,
    memory_left_as_it_is, late_starts, read_as_recorded, who_was_blocked, read_both_ways, loading_is_no_cpu_work,
    begins_otherwise, by_corrections_that_pay, by_nccls_choice, between_units,
)  # fmt: skip
