"""Compare: the steps of two recordings, of a prediction and what came of it, of a series of runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import atan, cos, pi, sin, sqrt
from operator import attrgetter
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import field

from daydream.arrays import distinct_rows, percentile
from daydream.errors import GraphError
from daydream.graph.calls import has_device_work
from daydream.graph.graph import Graph
from daydream.graph.tables import CPU, covered_steps, step_rank
from daydream.lazy import NotebookFigure
from daydream.predict.basis import UNPROFILED, Basis, timed_steps
from daydream.predict.breakdown import Parts, parts_json, parts_of
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay, Source, as_replay
from daydream.results import Live, Record

if TYPE_CHECKING:
    import pandas as pd

DOUBTFUL = 0.03  # with a larger replay error, where the time goes is uncertain
# Of its time: kernels of ResNet-50 recorded twice on a V100 differ by 0.3% in the median, nine of ten by up
# to 2.5%.
SAME = 0.05
CHANCE = 0.05  # a shift that is likelier to be noise is none
SLOWER, SHARE = 0.01, 0.02  # of a step, of its shift: what is less is not told
OF_FOUR_IN_FIVE = (
    2.56  # standard deviations of a normal distribution from the 10th to the 90th percentile
)


class Work(NamedTuple):
    """Some work of a step: how often it is done and how long it takes, in ns, means over the covered steps.

    It belongs to a layer and an operator, where known; `name` is that of a kernel, a copy, a call.
    """

    layer: str | None
    operator: str | None
    name: str
    runs: float
    ns: float


Row = tuple[str, Work]  # some work of the side `before`, or `after`


class Change(Record, kw_only=True):
    """Some work of a step before and after, times in ns.

    Attributes:
        before: the names that it went by, those first that take longest; none if there was no such work.
        after: likewise after.
        layer: where it belongs.
        operator: likewise.
        state: new, vanished, replaced (by other names), changed or same.
        before_count: how often it is done in a step.
        after_count: likewise after.
        before_ns: how long it takes.
        after_ns: likewise after.
        change_ns: how much longer it takes after.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    layer: str | None = None
    operator: str | None = None
    state: str = ""
    before_count: float
    after_count: float
    before_ns: int
    after_ns: int
    change_ns: int = 0

    def __post_init__(self) -> None:
        """Fill in what follows from both sides."""
        self.change_ns = self.after_ns - self.before_ns
        if not self.before or not self.after:
            self.state = "vanished" if self.before else "new"
        elif set(self.before) != set(self.after):
            self.state = "replaced"
        else:
            often = round(self.before_count, 6) == round(self.after_count, 6)
            near = abs(self.change_ns) <= SAME * max(self.before_ns, self.after_ns)
            self.state = "same" if often and near else "changed"


class Side(Record, kw_only=True):
    """One of the two: a recording as it was measured, or what was predicted from one; times in ns.

    Attributes:
        name: what it is called.
        prediction: what was predicted; None for a recording.
        step_ns: the mean step; None where it cannot be predicted, for this `reason`.
        low_ns: four of five steps lie between this and `high_ns`; of a prediction, its 90% interval.
        high_ns: likewise.
        reason: why there is no prediction, None if there is.
        basis: which step that is: `unprofiled`, `estimated` or `recorded`.
        recorded_ns: the step as it was recorded, measured or predicted.
        steps: how many are covered.
        ranks: how many ranks were recorded.
        devices: the names of the GPUs that did any work.
        max_replay_error: the largest replay error of a step, unsigned.
        ns_by_cause: the mean step, as it replays, by cause.
        ns_by_bound: the same by what the step waits for.
        by_phase: the same by phase.
        by_layer: the same by layer.
    """

    name: str
    prediction: str | None = None
    step_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    reason: str | None = None
    basis: Basis
    recorded_ns: int | None
    steps: int
    ranks: int
    devices: list[str]
    max_replay_error: float
    ns_by_cause: Mapping[str, int]
    ns_by_bound: Mapping[str, int]
    by_phase: Mapping[str, int]
    by_layer: Mapping[str, int]

    simulated_ns = Live[int]()  # the mean step, whatever it is worth
    graph = Live[Graph]()
    breakdown = Live[Parts]()  # where the mean step's time goes
    own_notes = Live[list[str]]([])  # the prediction's

    @property
    def on_device(self) -> bool:
        """Whether any device work was recorded; collectives on CPU threads (gloo) are none."""
        return has_device_work(self.graph)


class Difference(Record, NotebookFigure, eq=False, kw_only=True):
    """What is different between two steps, and what is not; of each part the largest change comes first.

    The work of layers, operators (each in its layer) and kernels is that of the GPU, or of the CPU where a
    side has no GPU. Counts and times are per step, means over the covered ones. Work that runs side by side
    adds up to more than a step.

    Attributes:
        before: the step before.
        after: the step after.
        change_ns: how much longer the step takes after.
        speedup: before / after; infinite, null in JSON, if nothing is left of the step.
        error: of the predicted step, signed; None between two recordings, or without a prediction.
        started_from_ns: of a prediction, the measured step it was made from.
        layers: what changed by layer.
        operators: the same by operator.
        kernels: the same by kernel, where both sides have a GPU.
        cpu: the CPU work by operator, where both have a GPU.
        notes: what else is different, and what a reader should know before trusting the figures.

    Example::

        prediction = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
        found = daydream.compare(prediction, "examples/mlp_cpu.json.gz")
        print(found.error)  # of the predicted step: 0.02 is 2% too long
        for change in found.operators[:3]:
            print(change.before, change.before_ns, change.after_ns)

    """

    before: Side
    after: Side
    change_ns: int = 0
    speedup: float = 1.0
    error: float | None = None
    started_from_ns: int | None = None
    layers: tuple[Change, ...]
    operators: tuple[Change, ...]
    kernels: tuple[Change, ...]
    cpu: tuple[Change, ...]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Fill in what follows from both sides."""
        one = self.before
        two = self.after
        old = one.simulated_ns
        new = two.simulated_ns
        self.change_ns = new - old
        self.speedup = old / new if new else float("inf")
        self.error = self.speedup - 1 if one.prediction and not one.reason else None
        self.notes = _notes(self)

    def __repr__(self) -> str:
        steps = f"{self.before.simulated_ns / 1e6:,.3f} ms, {self.after.simulated_ns / 1e6:,.3f} ms"
        return f"<Difference {self.before.name}, {self.after.name}: {steps}, {self.speedup:.2f}x>"

    @property
    def overlap(self) -> bool:
        """Whether the ranges of both steps have something in common."""
        sides = self.before, self.after  # a step that cannot be predicted has no range
        low = max(side.low_ns or 0 for side in sides)
        return low <= min(side.high_ns or -1 for side in sides)

    @property
    def new(self) -> list[Change]:
        """Kernels that only the step after has, those that take longest first."""
        return [each for each in self.kernels if each.state == "new"]

    @property
    def vanished(self) -> list[Change]:
        """Kernels that only the step before has, those that take longest first."""
        return [each for each in self.kernels if each.state == "vanished"]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each phase, cause, layer, operator and kernel: counts and ns, before and after."""
        import pandas as pd

        rows = []
        for part in ("phase", "cause"):
            old, new = (side.breakdown[f"by_{part}"] for side in (self.before, self.after))
            for name in {**old, **new}:
                times = {"before_ns": old.get(name, 0), "after_ns": new.get(name, 0)}
                rows.append({"part": part, "name": name, **times})
        for part in ("layers", "operators", "kernels", "cpu"):
            for change in getattr(self, part):
                names = dict.fromkeys(
                    ", ".join(side) for side in (change.before, change.after) if side
                )
                shown = {"part": part.removesuffix("s"), "name": " -> ".join(names)}
                rows.append({**change.to_json(), **shown})
        frame = pd.DataFrame(rows, columns=["part", "name", *Change.__struct_fields__[2:]])
        return frame.assign(change_ns=frame["after_ns"] - frame["before_ns"])


def compare(
    before: Source | Replay | Prediction,
    after: Source | Replay,
    *,
    names: tuple[str, str] | None = None,
) -> Difference:
    """Return what is different between the steps of two traces, or of a prediction and a trace.

    A `Prediction` (of `whatif`) as `before` stands for the predicted step, which is compared with the
    one that was recorded after the change was made. `names` are what the two are called; the names
    of their files by default.

    Returns:
        A `Difference`: both steps in ns, means over the covered steps, and the changes of layers,
        operators and kernels, the largest first.

    Raises:
        TraceError: a trace cannot be read.
        GraphError: a trace covers no step.

    """
    start = None
    found = before if isinstance(before, Prediction) else as_replay(before)
    other = as_replay(after)
    ranks = set.intersection(
        *(
            {step_rank(step) for step in each.graph.steps if step.get("covered")}
            for each in (found, other)
        )
    )
    if isinstance(found, Prediction):
        start = found.replayed_ns if found.measured_ns is None else found.measured_ns
        one = _side(
            found.replay,
            found.graph,
            parts_of(found.after),
            found.simulated_ns,
            prediction=found.optimization,
            step_ns=found.predicted_ns,
            low_ns=found.predicted_low_ns,
            high_ns=found.predicted_high_ns,
            reason=found.reason,
            recorded_ns=found.recorded_after_ns,
        ).having(own_notes=found.own_notes)
    else:  # what was measured tells more than an estimate of it
        if not found.basis == other.basis == UNPROFILED:
            found = found.recording
            other = other.recording
        one = _recorded(found, ranks)
    two = _recorded(other, ranks)
    if names is None:
        names = (one.name or "the first trace", two.name or "the second trace")
    if names[0] == names[1]:
        names = (f"{names[0]} (before)", f"{names[1]} (after)")
    one.name, two.name = names
    both = one.on_device and two.on_device
    cpu = [work_of(side.graph, cpu=True) for side in (one, two)]
    work = [  # where there is no device, what is no CPU work is collectives on the host
        work_of(side.graph, cpu=False) + ([] if side.on_device else own)
        for side, own in zip((one, two), cpu, strict=True)
    ]
    return Difference(
        before=one,
        after=two,
        layers=changes_by("layer", *work),
        operators=changes_by("operator", *work),
        kernels=changes_by("name", *work) if both else (),
        cpu=changes_by("operator", *cpu) if both else (),
        started_from_ns=start,
    )


def _recorded(found: Replay, ranks: Collection[int]) -> Side:
    """Return the side of a recording, of its steps of these ranks; of none (none in common), of all ranks."""
    graph = found.graph
    low = high = step_ns = found.basis_ns
    if found.basis_measured_ns is not None:  # it was measured
        step_ns = found.basis_measured_ns
        times = [step.measured_ns for step in found.steps]
        timed = timed_steps(graph.recorded, times) if found.basis == UNPROFILED else None
        low, high = percentile(times if timed is None else timed.kept, [10, 90]).tolist()
    first = found.settled.step_times(0)
    steps = [step for step in first if not ranks or step_rank(graph.steps[step]) in ranks]
    parts = parts_of(found.settled._replace(copy=0), steps)
    return _side(
        found,
        graph,
        parts,
        step_ns,
        step_ns=step_ns,
        recorded_ns=found.measured_ns,
        low_ns=round(low),
        high_ns=round(high),
    )


def _side(replay: Replay, graph: Graph, parts: Parts, simulated_ns: int, **figures: Any) -> Side:
    """Return a side with what is known of its replay, and of its graph or a changed one."""
    metadata = graph.recorded.metadata
    used = {lane.device for lane in graph.lanes if lane.on_device}
    devices = metadata.get("devices", [])
    named = [each for each in devices if each.get("id") in used] or devices
    figures |= parts_json(parts)
    return Side(
        name=str(metadata.get("source") or ""),
        basis=replay.basis,
        steps=len(replay.steps),
        ranks=len({step_rank(step) for step in graph.steps}),
        devices=sorted({str(each["name"]) for each in named if each.get("name")}),
        max_replay_error=replay.max_error,
        **figures,
    ).having(graph=graph, breakdown=parts, simulated_ns=simulated_ns)


def _notes(found: Difference) -> list[str]:
    """Return what is different about the recordings themselves, and whether the figures are uncertain."""
    sides = one, two = found.before, found.after
    same = one.on_device == two.on_device
    gpu, cpu = sides if one.on_device else (two, one)
    old, new = (
        {
            "devices differ:": same and (", ".join(side.devices) or "an unnamed one"),
            "step is": side.basis,
            "number of ranks is": side.ranks,
            "size of the job is": side.graph.recorded.metadata.get("world_size"),
            "steps are told by": side.graph.recorded.metadata.get("step_source"),
        }
        for side in sides
    )
    before, after = (side.graph.recorded.metadata.get("versions") or {} for side in sides)
    versions = [
        f"{name.replace('_', ' ')} {version} and {after[name]}"
        for name, version in before.items()
        if name in after and version != after[name]
    ]
    unknown = {
        what: [
            side.name for side in sides if (side.graph.columns[column][side.graph.alive] < 0).all()
        ]
        for column, what in (("layer", "layers"), ("op", "operators"))
    }
    alone = [side.name for side in sides if side.steps == 1]
    said: list[Any] = [
        one.reason and f"The step cannot be predicted from the trace before, because {one.reason}.",
        *one.own_notes,
        *(
            f"{side.name}: {run}"
            for side in sides
            if (run := side.graph.recorded.metadata.get("typical_run"))
        ),
        not same
        and f"The work of {gpu.name} is that of its GPU, of {cpu.name} that of the CPU: it has no other.",
        *(
            f"The {what} {fact} and {new[what]}."
            for what, fact in old.items()
            if None not in (fact, new[what]) and fact != new[what]
        ),
        versions and f"Versions differ: {', '.join(versions)}.",
        *(
            f"Only one of the two knows {what}; {names[0]} was recorded without them."
            for what, names in unknown.items()
            if len(names) == 1
        ),
        found.overlap  # a prediction that holds overlaps what came
        and not one.prediction
        and "The step times of the two overlap: the change may be noise.",
        *(
            f"A step of {side.name} replays {side.max_replay_error:.1%} off: where its time goes is "
            "uncertain."
            for side in sides
            if side.max_replay_error > DOUBTFUL
        ),
        alone
        and f"{' and '.join(alone)} {'cover' if len(alone) > 1 else 'covers'} a single step: how steps vary "
        "is not known.",
    ]
    return [*filter(None, said)]


class Run(Record):
    """A run of a series; its mean step in ns, and whether that is one of the slower ones."""

    name: str
    step_ns: int
    slow: bool = False


class Shift(Record):
    """How some time of the slower runs differs from that of the others; means in ns a step.

    Attributes:
        name: an operator; `step` for the whole.
        before_ns: of the others.
        after_ns: of the slower ones.
        change_ns: how much longer it takes in these.
        spread_ns: standard deviation from run to run.
        chance: that it is noise, at most: of Student's t, times the shifts that were tried.
    """

    name: str
    before_ns: int
    after_ns: int
    change_ns: int
    spread_ns: int
    chance: float


class Series(Record, NotebookFigure):
    """Runs of one program in their order, and the first that is slower than the others.

    Attributes:
        runs: all of them.
        first_slow: the name of the first slower one; None where no run stands out from the spread.
        step: how its step differs; None likewise.
        operators: of the device's work, or of the CPU's where there is none, those that differ by more than
            noise; the largest change first.
        basis: which step this is about: `unprofiled`, `estimated` or `recorded`.
    """

    runs: list[Run]
    first_slow: str | None
    step: Shift | None
    operators: list[Shift]
    basis: Basis


def compare_series(sources: Sequence[Source | Replay], names: Sequence[str]) -> Series:
    """Return which of three or more runs is the first slower one, and which operators are slower from there.

    Slower runs follow each other, up to the last or to one that is as fast again. Of all such runs those
    count whose mean step is least likely to be above the others' by chance: by the spread from run to run
    within both, which is taken to be no less than steps within a run tell.

    Raises:
        GraphError: there are fewer than three runs, or one covers no step.

    """
    if len(sources) < 3:
        raise GraphError("a series has three runs or more; two are compared side by side")
    found = [as_replay(each) for each in sources]
    if any(each.basis != UNPROFILED for each in found):  # what was measured tells more
        found = [each.recording for each in found]
    sides = [_recorded(each, set()) for each in found]
    runs = [Run(name, side.step_ns or 0) for name, side in zip(names, sides, strict=True)]
    steps = [run.step_ns for run in runs]
    ranges = [(side.high_ns or 0) - (side.low_ns or 0) for side in sides]
    deviations = np.array(ranges) / OF_FOUR_IN_FIVE
    least = float(np.mean(deviations**2 / [side.steps for side in sides]))
    spans = [slice(first, end) for end in range(2, len(runs) + 1) for first in range(1, end)]
    tried = [_shift("step", steps, span, least, len(spans)) for span in spans]
    shift = min(tried, key=lambda each: (each.chance, -each.change_ns))
    if shift.chance > CHANCE or shift.change_ns < SLOWER * shift.before_ns:
        return Series(runs, None, None, [], found[0].basis)
    span = spans[tried.index(shift)]
    for run in runs[span]:
        run.slow = True
    amounts = defaultdict[str, list[int]](lambda: [0] * len(runs))
    for place, side in enumerate(sides):
        for work in work_of(side.graph, cpu=not side.on_device):
            amounts[work.operator or work.name][place] += round(work.ns)
    shifts = [_shift(name, times, span, 0.0, 1) for name, times in amounts.items()]
    least_ns = SHARE * shift.change_ns
    operators = [each for each in shifts if each.chance <= CHANCE and each.change_ns >= least_ns]
    operators.sort(key=lambda each: (-each.change_ns, each.name))
    return Series(runs, runs[span.start].name, shift, operators, found[0].basis)


def _shift(name: str, times: Sequence[float], slow: slice, least: float, tried: int) -> Shift:
    """Return how the mean of some runs differs; `least` is the least variance, ns squared."""
    after = times[slow]
    before = [*times[: slow.start], *times[slow.stop :]]
    change = fmean(after) - fmean(before)
    within = sum(len(of) * pvariance(of) for of in (before, after))
    freedom = len(times) - 2
    variance = max(within / freedom, least, 1e-300)  # above 0 where all take the same
    t = change / sqrt(variance * (1 / len(before) + 1 / len(after)))
    return Shift(
        name, round(fmean(before)), round(fmean(after)), round(change), round(sqrt(variance)),
        min(tried * student(t, freedom), 1.0),
    )  # fmt: skip


def student(t: float, freedom: int) -> float:
    """Return how likely a value above t is by chance: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for each in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (each + 1) / (each + 2)
    inside = sin(angle) * total
    return (1 - (2 / pi * (angle + inside) if odd else inside)) / 2


def work_of(graph: Graph, *, cpu: bool) -> list[Work]:
    """Return the device work of a step (kernels, copies, collectives) or its CPU work, of covered steps.

    CPU work is by operator, waits not counted; what belongs to none has its own name. A call of an operator
    counts once, in however many pieces it was recorded.
    """
    covered = covered_steps(graph)
    on_cpu = graph.kind == CPU
    mask = on_cpu & ~graph.in_background if cpu else ~on_cpu
    # Where ranks meet, an arrival stands in the graph that takes no time and is no work.
    works = (graph.row >= 0) | (graph.duration_ns > 0)
    tasks = np.flatnonzero(mask & graph.alive & works & covered[graph.step])
    name = graph.name[tasks]
    op = graph.op[tasks]
    piece = tasks
    if cpu:
        name = np.where(op >= 0, -1, name)
        call = graph.column("call", tasks)
        whole = np.where(call >= 0, call, graph.row[tasks])
        piece = np.where(
            whole >= 0, whole, -1 - tasks
        )  # what an edit inserted is a piece of nothing else
    first, group = distinct_rows([graph.layer[tasks], op, name])
    counted, _ = distinct_rows([group, piece])
    count = np.bincount(group[counted])
    ns = np.bincount(group, graph.duration_ns[tasks])
    amounts = (count / covered.sum()).tolist(), (ns / covered.sum()).tolist()
    texts = (graph.column(column, tasks[first]).tolist() for column in ("layer", "op", "name"))
    found = []
    for layer, operator, text, *amount in zip(*texts, *amounts, strict=True):
        own = operator or text or "unnamed"
        names = (own, own) if cpu else (operator, text or "unnamed")
        found.append(Work(layer, *names, *amount))
    return found


# The fields by which the rows of the two sides are matched, one set after the other: layers may have other
# names on the other side, operators and kernels may have been replaced. A row whose last field is unknown is
# matched by a later set.
ROWS = {
    "layer": ("layer name",),
    "operator": ("layer operator name", "operator", "layer"),
    "name": ("layer operator name", "layer operator", "operator name", "operator", "name", "layer"),
}


def changes_by(what: str, before: Sequence[Work], after: Sequence[Work]) -> tuple[Change, ...]:
    """Return how work changed by `layer`, `operator` (in its layer) or `name`, the largest change first.

    The two sides are matched as `ROWS` says; what still has no match is new or vanished. Rows with the same
    place and names on both sides are added up.
    """
    left = []
    for side, works in (("before", before), ("after", after)):
        for each in works:
            operator = None if what == "layer" else each.operator
            name = getattr(each, what) or f"no {what}"
            left.append((side, each._replace(operator=operator, name=name)))
    matched = []
    for label in ROWS[what]:
        fields = label.split()
        groups = defaultdict(list)
        for side, each in left:
            if getattr(each, fields[-1]) is not None:
                groups[attrgetter(*fields)(each)].append((side, each))
        matched += [group for group in groups.values() if len(dict(group)) > 1]  # of both sides
        known = {each for group in matched for each in group}
        left = [each for each in left if each not in known]

    rows = defaultdict[Any, list[Row]](list)
    for group in [*matched, *([each] for each in left)]:
        first = group[0][1]
        names = frozenset((side, each.name) for side, each in group)
        rows[None if what == "name" else first.layer, first.operator, names] += group
    changes = []
    for (layer, operator, _), row in rows.items():
        found = dict[str, Any]()
        for name in ("before", "after"):
            works = [each for side, each in row if side == name]
            found[f"{name}_count"] = sum((each.runs for each in works), 0.0)
            found[f"{name}_ns"] = round(sum(each.ns for each in works))
            found[name] = _names(works)
        changes.append(Change(layer=layer, operator=operator, **found))
    changes.sort(key=lambda each: (-abs(each.change_ns), each.before, each.after, each.layer or ""))
    return tuple(changes)


def _names(works: Sequence[Work]) -> tuple[str, ...]:
    """Return the names of some work, those first that take longest."""
    times = Counter[str]()
    for each in works:
        times[each.name] += round(each.ns)
    return tuple(sorted(times, key=lambda name: (-times[name], name)))
