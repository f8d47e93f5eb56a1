"""What to try: what a step could do without, and the what-ifs that may remove it.

A rule looks for a general cause on the critical path, or beside it, and says what it costs a step now. What
its absence would save is never derived from that: it is simulated, on top of what was changed already.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy import ndarray

from daydream.arrays import distinct_rows
from daydream.costs.operators import TO_DEVICE
from daydream.errors import DaydreamError, NotApplicableError
from daydream.graph.calls import call_rows, has_device_work
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.select import coded
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.model.loading import untraced_waits
from daydream.predict.basis import preference
from daydream.predict.breakdown import OF_KERNELS, Chain, OfTasks, labels, trace_back
from daydream.predict.prediction import Prediction, predict
from daydream.results import Live, Predicted
from daydream.simulate.critical_path import PathCause
from daydream.trace.schema import UNKNOWN
from daydream.transforms import stages
from daydream.transforms.compose import edit_of, parse, spelled
from daydream.transforms.real_change import code_of, why_not_offered
from daydream.transforms.registry import Optimization, Options, find, typed

LEAST = 0.005  # of a step: what costs less is not worth a sentence
LONG_GAP = 0.01  # of a step: untraced time in one piece that is told by itself, if it is
LONG_GAP_NS = 500_000  # more than Python takes between two operators
MOST_WAITS = 4  # groups of waiting calls
MOSTLY = 0.5  # of a cost: what holds more of it names its place
TO = "to the device"
BREAKS = "graph breaks"
ALLOCATION = regex(r"(?i)malloc|free")
MODEL = ("forward", "loss", "backward")
READS = "_local_scalar_dense|aten::copy_"  # what `.item()`, `.cpu()` and `.tolist()` call
# How much is simulated for a suggestion, so that an answer does not take noticeably longer for it.
MOST_COSTS = 3
MOST_ASKED = 6
MOST_TASKS = 50_000

WhatIf = tuple[str, Options]  # a name and its options


class WhatIfResult(Predicted):
    """One what-if: what it predicts, or the reason why it gives no answer.

    Attributes:
        command: the words of the command, without the trace.
        code: the line of a training script that makes the change, None if none does.
        notes: what a reader should know of this change.
    """

    optimization: str = field(name="whatif")
    reason: str | None = field(default=None, name="refused")
    command: tuple[str, ...] = ()
    code: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the command, and what the change saves."""
        Predicted.__post_init__(self)
        self.command = ("daydream", "whatif", self.optimization, *typed(self.options))

    @property
    def change(self) -> Optimization:
        """What comes last of the changes."""
        return find(self.optimization.rsplit("+", 1)[-1])

    @property
    def needs(self) -> str | None:
        """What it takes besides code, as `rank` says it: another workload, more GPUs; None if nothing."""
        return stages.NEEDS.get(self.change.stage)


class Place(NamedTuple):
    """What holds the largest part of a cost, that part, and where it is; None where unknown."""

    label: str | None = None
    label_share: float = 0.0
    layer: str | None = None
    phase: str | None = None
    source: str | None = None


class Avoidable(OfTasks, eq=False):
    """One avoidable cost: what it is, where, what it costs a step, and the what-ifs that remove it.

    Attributes:
        sort: what it is.
        label: what holds the largest part of it: the operator on the CPU, the family of a kernel.
        label_share: that part of the cost, 0 to 1.
        layer: where that is; None where unknown.
        phase: likewise.
        source: its line of the program.
        count_per_step: tasks.
        cost_ns: what it takes a step: time on the critical path, or time that CPU calls are blocked.
        saving_ns: what the best what-if would save, without one what the cost's absence would.
        code: the line of a training script that makes the best change, None if none does.
        whatifs: the changes that may remove it, the one that saves most first.
        without_ns: the step if the cost were gone, where no change takes it away as a whole.
    """

    sort: str
    label: str | None
    label_share: float
    layer: str | None
    phase: str | None
    source: str | None
    count_per_step: float
    cost_ns: int
    saving_ns: int | None = None
    code: str | None = None
    whatifs: Sequence[WhatIfResult] = ()
    without_ns: int | None = None

    asked = Live[Sequence[WhatIf]]()  # the what-ifs that may remove it, before any was simulated
    made_of = Live[Options | None]()  # what it is made of, as options of `scale`
    best = Live[WhatIfResult | None]()  # the what-if that saves most, None if none gives an answer
    limit = Live[WhatIfResult | None]()  # what the cost's absence gives


def _add(
    chain: Chain,
    found: list[Avoidable],
    times: Sequence[ndarray],
    sort: str,
    words: str,
    chosen: ndarray | list[int],
    *whatifs: str | WhatIf,
    made_of: Options | None = None,
    place: Place | None = None,
    with_source: bool = False,
) -> None:
    """Add a cost to those found, if it takes long enough, and if a line of the program is known.

    Args:
        chain: the path.
        found: what it is added to.
        times: where each time is, the task it belongs to, and its ns; a task counts once for each place.
        sort: the sort of cost.
        words: its tasks in words.
        chosen: which of the times it is.
        whatifs: what may remove it, with options if any.
        made_of: see `Avoidable`.
        place: where it lies; by default where most of it does.
        with_source: whether a line has to be known.
    """
    where, task, ns = (each[chosen] for each in times)
    cost_ns = chain.per_step(ns)
    if cost_ns < max(LEAST * chain.step_ns, 1):
        return
    place = place or place_of(chain.graph, task, ns)
    if with_source and place.source is None:
        return
    cost = Avoidable(sort, *place, len(distinct_rows([where, task])[0]) / chain.number, cost_ns).of(
        chain.tasks(task, words)
    )
    asked = [(each, {}) if isinstance(each, str) else each for each in whatifs]
    found.append(cost.having(asked=asked, made_of=made_of))


def _calls_that_block(chain: Chain, found: list[Avoidable]) -> None:
    """Add calls that wait for the device: each holds up its thread, and the device runs dry behind it.

    Calls are told apart by their operator and by what they copy. A copy that blocks shows its
    wait in the copy itself or in the synchronization of the same operator call.
    """
    graph = chain.graph
    times = _, task, ns = chain.waits(Cause.SYNC)
    tasks = Selection(graph, task)
    groups = defaultdict(list)
    said = np.full(len(tasks), "", object)  # what each copies
    for column in (
        "call",
        "row",
    ):  # the same operator call, else the very call; the latter is surer
        for words, name in (("from the device", "DtoH|DeviceToHost"), (TO, TO_DEVICE)):
            known = getattr(graph.select(kind="memcpy", name=name).launches(), column)
            said[np.isin(getattr(tasks, column), known[known >= 0])] = words
    waiting = zip(said, tasks.op, tasks.name, strict=True)
    for number, (copied, op, name) in enumerate(waiting):
        groups[copied, name if op is None or ALLOCATION.search(name) else op].append(number)
    for copied, called in sorted(groups, key=lambda key: (-ns[groups[key]].sum(), key))[
        :MOST_WAITS
    ]:
        mine = groups[copied, called]
        whatifs: list[str | WhatIf] = [("remove-sync", {"which": _exactly(called)})]
        if len(groups) > 1:  # without one of them the step may wait in the next as long
            whatifs.append("remove-sync")
        if copied == TO:
            whatifs = ["pinned-memory", "prefetch", *whatifs]
        sort = f"blocking copies {copied}" if copied else "synchronization"
        place = place_of(graph, task[mine], ns[mine])._replace(label=called)
        _add(chain, found, times, sort, f"{sort}: waits of {called}", mine, *whatifs, place=place)


def _stretches(chain: Chain, found: list[Avoidable]) -> None:
    """Add stretches of the path that have a cause in common, with the what-ifs that may remove it."""
    graph = chain.graph
    of = chain.of
    add = partial(_add, chain, found, (chain.window, chain.task, chain.ns))
    # Stretches in which a thread records nothing for long.
    idle = of(PathCause.UNTRACED, PathCause.OUTSIDE)
    idle &= chain.ns >= max(LONG_GAP * chain.step_ns, LONG_GAP_NS)
    # Those in which a step waits for its batch: before its first copy, where no loader was recorded.
    batches = np.zeros(len(idle), bool)
    if not len(graph.select(phase="data")):
        with suppress(NotApplicableError):
            batches = idle & np.isin(chain.task, untraced_waits(graph).tasks.ids)
    # Where worker processes load already, as many of them are asked about as the trace suggests.
    loads = of(PathCause.LOADING) | batches
    suggests = find("dataloader").suggested_options if loads.any() else None
    workers = {} if suggests is None else suggests(graph)
    add(
        "data loading", "data loading on the critical path", loads,
        *([] if workers is None else [("dataloader", workers)]),
        made_of=None if workers == {} else {"on": "cpu", "phase": "data"},
    )  # fmt: skip
    # Where the critical path of a rank's step runs on another rank, it waits for that one.
    ranks = graph.column("rank", chain.task)
    elsewhere = ranks != chain.windows[chain.window, 2]
    if elsewhere.any():
        total = np.bincount(ranks[elsewhere], chain.ns[elsewhere])
        add(
            "stragglers", "work of other ranks on the critical path", elsewhere, "no-stragglers",
            place=Place(f"rank {total.argmax()}", total.max() / total.sum()),
        )  # fmt: skip
    # Between two graphs of one compiled call the program is in Python, and guards come before the next.
    from daydream.model.captured import breaks_of

    if breaks := breaks_of(graph):
        first = breaks[0]
        add(
            BREAKS, "work between compiled graphs on the critical path",
            np.isin(chain.task, np.concatenate([each.tasks.ids for each in breaks])), "compile",
            place=Place(
                first.reason, first.ns / max(sum(each.ns for each in breaks), 1), None, "forward", first.source
            ),
        )  # fmt: skip
    # Time in one piece in which a thread records nothing while the step waits for it.
    name = graph.column("name", chain.task)
    alone = idle & ~batches
    for text in sorted({*filter(None, name[alone])}):
        add(
            "idle gap", f"untraced time after {text} on the critical path", alone & (name == text),
            made_of={"on": "cpu", "name": _exactly(text), "only_gaps": True},
        )  # fmt: skip
    # A collective costs what nothing else hides; a network without limits shows how much that is.
    add(
        "exposed communication", "collectives on the critical path", of(PathCause.COMMUNICATION),
        "overlap", "compression", made_of={"kind": "collective"},
    )  # fmt: skip
    # A copy on the stream of the kernels holds them up for as long as it takes.
    copies = of(PathCause.COPIES)
    to_device = np.isin(chain.task, graph.select(kind="memcpy", name=TO_DEVICE).ids)
    add(
        "copies to the device", "copies to the device on the critical path", copies & to_device,
        "prefetch", "pinned-memory",
    )  # fmt: skip
    add(
        "other copies", "copies on the critical path", copies & ~to_device,
        made_of={"kind": "memcpy", "name": f"^(?!.*({TO_DEVICE}))"},
    )  # fmt: skip
    phase = graph.column("phase", chain.task)
    model, optimizer = np.isin(phase, MODEL), phase == "optimizer"
    if has_device_work(graph):
        # Where the CPU is on the critical path of the model, it launches more slowly than the device works.
        add(
            "launch-bound CPU", "CPU work of forward, backward and optimizer on the critical path",
            of(PathCause.CPU, PathCause.UNTRACED, PathCause.LATENCY) & (model | optimizer) & ~idle,
            "cuda-graphs", "compile",
        )  # fmt: skip
    else:
        # Where nothing is launched to a device, the step is its operators: fewer of them cost fewer calls.
        add(
            "CPU operators", "operators of forward and backward on the critical path",
            of(PathCause.OPERATORS, PathCause.UNTRACED) & model & ~idle,
            "compile", "flash-attention", "fused-cross-entropy",
        )  # fmt: skip
    # Each small kernel costs its fixed part and the pause behind it: fused, they cost that once.
    add(
        "small-kernel chains", "small kernels on the critical path",
        of(PathCause.SMALL, PathCause.BETWEEN) & model, "compile",
    )  # fmt: skip
    # Kernels in a row read and write what one kernel would keep in registers: chains, scores, layouts.
    add(
        "memory-bound kernels", "memory-bound kernels on the critical path", of(PathCause.MEMORY) & model,
        "compile", "flash-attention", "fused-cross-entropy", "fused-norm", "channels-last",
    )  # fmt: skip
    # Kernels that compute, or whose bound is unknown: attention and convolutions have others to choose.
    add(
        "other kernels", "kernels not known to be bound by memory on the critical path",
        of(PathCause.COMPUTE, PathCause.KERNELS) & model, "flash-attention", "channels-last", "compile",
    )  # fmt: skip
    # Work of the program itself that the step waits for: preparing a batch needs no place in the step. Told
    # where lines of the program are recorded: without them nobody knows what it is.
    add(
        "work between batches", "CPU work on the critical path",
        of(PathCause.CPU, PathCause.OPERATORS, PathCause.UNTRACED) & (phase == "other") & ~idle,
        made_of={"on": "cpu", "phase": "other"}, with_source=True,
    )  # fmt: skip
    # An update that goes parameter by parameter launches a kernel or more for each of them.
    add(
        "optimizer", "the optimizer's work on the critical path", optimizer,
        "fused-adam", "fused-optimizer", "foreach-optimizer",
    )  # fmt: skip
    # Kernels in 32 bits move twice the bytes, and their products leave 16-bit units idle.
    add(
        "32-bit kernels", "32-bit kernels on the critical path",
        of(*OF_KERNELS.values()) & model & (graph.column("dtype", chain.task) == "float32"), "amp", "tf32",
    )  # fmt: skip


def avoidable_costs(chain: Chain) -> list[Avoidable]:
    """Return the avoidable costs of the steps, the largest first, each with the what-ifs that may remove it.

    One what-if may remove several costs; it is named with the largest of them.
    """
    costs = list[Avoidable]()
    _calls_that_block(chain, costs)
    _stretches(chain, costs)
    # What removes graph breaks is named with them: of compiled code it removes nothing else.
    costs.sort(key=lambda each: (each.sort != BREAKS, -each.cost_ns))
    named = []
    for cost in costs:
        cost.asked = [each for each in cost.asked if each not in named]
        named += cost.asked
    return [cost for cost in costs if cost.asked or cost.made_of is not None]


def offered(chain: Chain, cost: Avoidable) -> Iterator[WhatIf]:
    """Return the what-ifs of a cost that the recorded script can have; a file is loaded as its turn comes."""
    return (each for each in cost.asked if why_not_offered(find(each[0]), chain.graph) is None)


def place_of(graph: Graph, tasks: ndarray, ns: ndarray) -> Place:
    """Return where the largest part of a cost lies; `ns` is each task's part of it."""
    if ns.sum() <= 0:
        return Place()
    code, ((label, label_ns), *_) = labels(graph, tasks, ns)
    mine = tasks[code == 0]
    own_ns = ns[code == 0]
    recorded = graph.recorded
    source = None
    if recorded.text("stack"):  # of the operator call that holds most of the cost
        stacks = np.append(recorded["stack"], UNKNOWN)[call_rows(graph, mine, inner=True)]
        source = _most(stacks, recorded.text("stack"), own_ns)
    layer, phase = (_most(*coded(graph, column, mine), own_ns) for column in ("layer", "phase"))
    return Place(label, label_ns / ns.sum(), layer, phase, source)


def _most(codes: ndarray, texts: Sequence[str], ns: ndarray) -> str | None:
    """Return the text that holds more than half of the time, None if there is none or it is unknown."""
    total = np.bincount(codes + 1, ns)
    return ["", *texts][total.argmax()] or None if total.max() > MOSTLY * ns.sum() else None


def _exactly(name: str) -> str:
    """Return the regular expression that only this name matches."""
    return "^" + re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name) + "$"


class WhatIfs(Struct):
    """Asks what-ifs of a step, on top of the change that was made already, if any.

    `made` are the optimizations of that change, `given` its options. `bare` answers have neither notes nor an
    interval, which take longer.
    """

    now: Prediction
    made: Sequence[Optimization] = ()
    given: Options = {}
    bare: bool = False

    def tried(
        self, name: str, options: Options, *, alone: bool = False
    ) -> tuple[WhatIfResult, Prediction | None]:
        """Return the answer to a what-if on top of the change, and its prediction; None if it is refused.

        `alone` it is made in the changed graph, and named, as if there had been no change before.
        """
        now, replay = self.now, self.now.replay
        made, given, start = ((), {}, now.graph) if alone else (self.made, self.given, None)
        changes = [*made, find(name)]
        options = {**given, **options}
        interval = not (self.bare or alone)
        # Of calls that wait the line of code is known for those alone that read a value.
        reads = re.search(READS, str(options.get("which", READS)))
        code = code_of(name, replay.graph) if reads else None
        found = WhatIfResult(spelled(changes), options, now.simulated_ns, code=code)
        before = replace(edit_of(self.made), copies={replay.graph.version: now.graph})
        try:
            edit = edit_of(changes, options, after=before)
            prediction = predict(replay, edit, start=start, interval=interval)
        except DaydreamError as error:
            return found.but(reason=" ".join(str(error).split())), None
        if interval:
            found.notes = tuple(prediction.own_notes)
            for end in ("predicted_low_ns", "predicted_high_ns", "speedup_low", "speedup_high"):
                setattr(found, end, getattr(prediction, end))
        return found.but(predicted_ns=prediction.predicted_ns, reason=prediction.reason), prediction

    def without(self, **where: Any) -> WhatIfResult:
        """Return the answer to `scale --factor 0`: the step if some of its work took no time.

        It comes behind the change that was made already, which may be a `scale` itself.
        """
        found, prediction = self.tried("scale", {**where, "factor": 0.0}, alone=bool(self.made))
        if self.made and prediction is not None:
            return found.but(predicted_ns=prediction.simulated_ns, reason=None)
        return found

    def best(self, asked: Iterable[WhatIf]) -> list[WhatIfResult]:
        """Return the answers, the one that saves most first; of equal ones the first asked.

        Of those that are the same change (they exclude each other and give the same step) there is one, as
        `rank` chooses it.
        """
        answers = [self.tried(*each)[0] for each in asked]
        kept = []
        for answer in sorted(
            answers, key=lambda each: (each.saving_ns is None, -(each.saving_ns or 0))
        ):
            same = [
                other
                for other in answers
                if other is answer
                or (
                    answer.predicted_ns == other.predicted_ns is not None
                    and answer.change.rules_out(other.change)
                )
            ]
            if answer is min(same, key=lambda each: preference(each.notes, each.optimization)):
                kept.append(answer)
        return kept

    def avoidable(self, chain: Chain) -> list[Avoidable]:
        """Return the avoidable costs of a step with their answers, those that would save most first."""
        costs = avoidable_costs(chain)
        for cost in costs:
            cost.whatifs = self.best(offered(chain, cost))
            cost.best = next((each for each in cost.whatifs if each.saving_ns is not None), None)
            cost.limit = None if cost.made_of is None else self.without(**cost.made_of)
            if cost.limit is not None:
                cost.saving_ns = cost.limit.saving_ns
                cost.without_ns = cost.limit.predicted_ns
            if cost.best is not None:
                cost.saving_ns = cost.best.saving_ns
                cost.code = cost.best.code
        costs = [each for each in costs if each.whatifs or each.made_of is not None]
        return sorted(costs, key=lambda each: (-(each.saving_ns or 0), -each.cost_ns, each.sort))


def suggestion(
    prediction: Prediction,
    optimizations: Sequence[Optimization] | None = None,
    options: Options | None = None,
) -> WhatIfResult | None:
    """Return the what-if to try on top of a change; None if none of the likely ones saves anything.

    What may remove the largest costs of the changed step is simulated, and the one that saves most is
    returned. `optimizations` and `options` are what was asked for, as it was typed; they are simulated with
    each candidate. Of a very long recording none is asked: the answer is not to wait for it.
    """
    after = prediction.after
    if prediction.reason is not None or not prediction.simulated_ns or not after.step_times():
        return None
    if prediction.replay.graph.alive.sum() > MOST_TASKS:
        return None
    made = parse(prediction.optimization) if optimizations is None else optimizations
    asker = WhatIfs(prediction, made, options or {}, bare=True)
    chain = trace_back(after)
    costs = sorted(avoidable_costs(chain), key=lambda each: -each.cost_ns)
    candidates = (
        (place, *each) for place, cost in enumerate(costs) for each in offered(chain, cost)
    )
    simulated = list[int]()  # for each candidate that was, the cost that it may remove
    found = []
    for place, name, own in candidates:
        if len(simulated) == MOST_ASKED or len({*simulated, place}) > MOST_COSTS:
            break
        answer, both = asker.tried(name, own)
        if both is None:  # it does not apply to this trace, or not together with the others
            continue
        simulated.append(place)
        saving_ns = answer.saving_ns or 0
        if saving_ns >= LEAST * answer.replayed_ns:
            answer = answer.but(optimization=name, options=own)
            found.append((-saving_ns, preference(both.notes, name), answer))
    return min(found, key=itemgetter(0, 1))[2] if found else None
