"""Phases where no autograd range was recorded: the thread that launches, and what kernels are called.

The autograd engine runs the backward pass of a device on a thread of its own, and the
thread that called `backward()` stands still until it is done. So a thread whose launches
lie inside ranges named backward, or which launches backward kernels, or whose launches are
followed by the optimizer's on the other thread, is the engine's.

Phases: what part of a training step a row belongs to.

Ranges that say it themselves come first (`Optimizer.step#`, autograd's nodes, the
data loader), then ranges a person named (`forward`, `backward`, ...), then the order
of things: what comes before the backward pass is forward, what comes after it and
before the optimizer is other.
"""

from __future__ import annotations

import re

import numpy as np

from daydream.arrays import unique
from daydream.collect.derive.nesting import STEP_MARKER, nearest
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import PHASES, UNKNOWN

BACKWARD_NODE = regex(r"^autograd::engine::evaluate_function|^[A-Z]\w*Backward\d*$|AccumulateGrad$")
BACKWARD_KERNEL = regex(
    r"backward|[_:]bwd|bwd_|bprop|wgrad|wrw|weight_grad|grad_input|grad_weight|GradInput|GammaBeta"
    r"|fmha_cutlassB|embedding_grad|EmbeddingBackward|cunn_SoftMaxBackward",
    re.IGNORECASE,
)
"""Not `dgrad`, and MIOpen's `igemm_bwd` only with weights: transposed convolutions run them forward."""
TRANSPOSED = regex(r"igemm_bwd|dgrad|bwd_data", re.IGNORECASE)
WEIGHTS = regex(r"wgrad|wrw|weight", re.IGNORECASE)
OPTIMIZER_KERNEL = regex(
    r"multi_tensor_apply.*(Adam|SGD|Lamb(?!da)|Adagrad|RMSprop|Lion)|fused_?(Adam|SGD|Lamb(?!da))"
    r"|adam_?w?_kernel|distributed_?adam|AdamFunctor|SGDFunctor",
    re.IGNORECASE,
)
LISTS = regex(r"multi_tensor_apply")
"""Kernels over lists of tensors: an optimizer's behind a backward pass, clipping and scaling before it."""
WORTH = 0.1
"""Of the caller's launches that a backward pass makes; a loader's thread makes fewer."""
INSIDE = 0.9
"""Of a thread's launches that lie inside ranges named backward, where it is the engine's."""
SOON = 5
MOST_TURNS = 0.5
"""Launches of the caller behind a backward pass among which the update begins, and how often it does."""
NAMED = 0.02
"""Of a thread's launches that are called backward, where it is the engine's."""


def launched(recording: Recording, launch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the launch calls in the order they began, and the name (a code) of what each launched."""
    device = np.flatnonzero(launch >= 0)
    calls, place = np.unique(launch[device], return_index=True)
    order = np.argsort(recording["start_ns"][calls], kind="stable")
    return calls[order], np.asarray(recording["name"][device[place]])[order]


def autograd_threads(
    recording: Recording, calls: np.ndarray, names: np.ndarray, said: np.ndarray
) -> np.ndarray:
    """Return which threads are the autograd engine's, by launches alone.

    `said` is the phase that a range around each row says, -1 for none.
    """
    threads = recording.threads
    count = int(threads.max(initial=0)) + 1
    engine = np.zeros(count, bool)
    of_call = threads[calls].astype(np.int64)
    launches = np.bincount(of_call, minlength=count)
    if (launches > 0).sum() < 2:
        return engine
    caller = _caller(recording, calls, of_call, said)
    backward = _matches(recording, BACKWARD_KERNEL)[names]
    inside = _inside_ranges(recording, calls, said, caller)
    for thread in np.flatnonzero(launches >= WORTH * launches[caller]).tolist():
        mine = of_call == thread
        if thread == caller or not mine.any():
            continue
        named = (
            backward[mine].mean() >= NAMED
            and backward[mine].mean() > backward[of_call == caller].mean()
        )
        followed = launches[thread] >= launches[caller] / 2 and _optimizer_follows(
            recording, names, of_call, thread, caller
        )
        engine[thread] = inside[mine].mean() >= INSIDE or named or followed
    return engine


def _caller(recording: Recording, calls: np.ndarray, of_call: np.ndarray, said: np.ndarray) -> int:
    """Return the thread that calls `backward()`: with ranges named forward, else the process's main one."""
    named = np.isin(of_call, recording.threads[np.flatnonzero(said == FORWARD)])
    main = recording["pid"][calls] == recording["tid"][calls]
    for which in (named, main, np.ones(len(calls), bool)):
        if which.any():
            return int(np.bincount(of_call[which]).argmax())
    raise AssertionError


def _inside_ranges(
    recording: Recording, calls: np.ndarray, said: np.ndarray, caller: int
) -> np.ndarray:
    """Return which calls begin while the caller is inside a range named backward."""
    ranges = np.flatnonzero(
        (said == BACKWARD) & recording.is_kind("annotation") & (recording.threads == caller)
    )
    start = recording["start_ns"][ranges]
    order = np.argsort(start, kind="stable")
    latest = np.maximum.accumulate((start + recording["duration_ns"][ranges])[order])
    at = recording["start_ns"][calls]
    before = np.searchsorted(start[order], at, side="right") - 1
    return np.asarray((before >= 0) & (np.append(latest, 0)[before] > at))


def _optimizer_follows(
    recording: Recording, names: np.ndarray, of_call: np.ndarray, thread: int, caller: int
) -> bool:
    """Return whether the caller soon works on lists of tensors behind most turns of a thread's launches."""
    both = np.flatnonzero((of_call == thread) | (of_call == caller))
    turns = np.flatnonzero((of_call[both[:-1]] == thread) & (of_call[both[1:]] == caller)) + 1
    if not len(turns):
        return False
    update = (_matches(recording, LISTS) | _matches(recording, OPTIMIZER_KERNEL))[names[both]]
    update &= of_call[both] == caller
    soon = np.minimum(turns[:, None] + np.arange(SOON), len(both) - 1)
    return bool(update[soon].any(axis=1).mean() >= MOST_TURNS)


def mark_by_kernels(
    recording: Recording,
    calls: np.ndarray,
    names: np.ndarray,
    step: np.ndarray,
    said: np.ndarray,
    mark: np.ndarray,
) -> None:
    """Write into `mark` the phases that names of kernels say: of launches, and of what an update spans.

    Kernels are called backward where nothing else tells the backward pass. An update is all that its
    thread does from the first to the last launch of an optimizer's kernel in a step. Lists of tensors
    are an optimizer's behind the last backward launch of a step, unless a range around them is named
    backward: what a program says of itself counts for more than such a guess.
    """
    if not (mark[calls] == BACKWARD).any():
        backward = _matches(recording, BACKWARD_KERNEL) & ~_transposed(recording)
        mark[calls[backward[names]]] = BACKWARD
    place = np.arange(len(calls))
    passes = np.flatnonzero(mark[calls] == BACKWARD)
    last_pass = np.full(int(step.max(initial=0)) + 2, -1)  # the last one stands for no step
    np.maximum.at(last_pass, step[calls[passes]], passes)
    last_pass = last_pass[step[calls]]
    lists = _matches(recording, LISTS)[names] & (last_pass >= 0) & (said[calls] != BACKWARD)
    update = _matches(recording, OPTIMIZER_KERNEL)[names] | lists
    update &= (place > last_pass) & (step[calls] >= 0)
    chosen = calls[update]
    threads = recording.threads
    start = recording["start_ns"]
    for number, thread in sorted(
        set(zip(step[chosen].tolist(), threads[chosen].tolist(), strict=True))
    ):
        mine = chosen[(step[chosen] == number) & (threads[chosen] == thread)]
        first, last = np.searchsorted(start, [start[mine].min(), start[mine].max()], side="left")
        rows = np.arange(first, last + 1)
        rows = rows[(threads[rows] == thread) & (mark[rows] < 0)]
        mark[np.union1d(rows, mine)] = OPTIMIZER


def orphans(recording: Recording, rows: np.ndarray) -> np.ndarray:
    """Return the phases that their own names say of device rows whose launch was not recorded."""
    if not len(rows):
        return np.zeros(0, np.int8)
    said = np.full(len(recording.text("name")) + 1, UNKNOWN, np.int8)
    for code in unique(recording["name"][rows]).tolist():
        text = recording.text("name")[code]
        if OPTIMIZER_KERNEL.search(text):
            said[code] = OPTIMIZER
        elif BACKWARD_KERNEL.search(text) and (WEIGHTS.search(text) or not TRANSPOSED.search(text)):
            said[code] = BACKWARD
    return np.asarray(said[recording["name"][rows]])


def _transposed(recording: Recording) -> np.ndarray:
    return _matches(recording, TRANSPOSED) & ~_matches(recording, WEIGHTS)


def _matches(recording: Recording, pattern: re.Pattern[str]) -> np.ndarray:
    """Return for each name's code whether a pattern finds it; the last entry is for no name."""
    return np.array([pattern.search(text) is not None for text in recording.text("name")] + [False])


WORK = ("operator", "annotation", "runtime")
DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))

OPTIMIZER_RANGE = regex(r"^Optimizer\.step#")
ZERO_GRAD_RANGE = regex(r"^Optimizer\.zero_grad#")
DATA_RANGE = regex(r"DataLoader|^dataloader|data_?loading|^\[DALI\]", re.IGNORECASE)
NODE_RANGE = regex(r"^autograd::engine::evaluate_function")
REDUCER_RANGE = regex(  # also what sharding does around the backward pass, and after it
    r"^torch(::|\.)distributed(::|\.)(ddp\.)?reducer|^FSDP::(root_)?(pre|post)_backward"
)
OLD_NODE = regex(r"^[A-Z]\w*Backward\d*$|AccumulateGrad$")  # before evaluate_function ranges, 2021
LOSS_OPERATOR = regex(r"loss\b|_loss|cross_entropy|\bkl_div|nll_|Loss")
NAMED_RANGES = [  # what people call their ranges; `## forward ##` and `Forward` alike
    (regex(rf"^\W*{pattern}", re.IGNORECASE), phase)
    for pattern, phase in (
        (r"(zero_?grad)\b", OTHER),
        (r"(optimi[sz]er|opt)([ _.]?step)?\W*$", OPTIMIZER),
        (r"(backward|bwd)([ _]pass)?\W*$", BACKWARD),
        (r"(forward|fwd)([ _]pass)?\W*$", FORWARD),
        (r"loss\W*$", LOSS),
        (r"(data|load[ _]?data|data[ _]?load(ing|er)?)\W*$", DATA),
    )
]


def find_phases(
    recording: Recording,
    parent: np.ndarray,
    step: np.ndarray,
    forward_of: np.ndarray,
    launch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the phase of each host row as an index into `PHASES`, and whether it is only assumed.

    It is unknown on threads that do no work. `forward_of` is the forward operator of a backward
    node, `launch` the call that launched a device row. Where nothing tells phases all work is
    taken for forward; that is assumed, unless operators were recorded: then a backward pass
    would have been, too.
    """
    operator = recording.is_kind("operator")
    host = recording.is_kind(*WORK)
    strong = _strong_marks(recording, host)
    holder = nearest(strong >= 0, parent)
    phase = np.where(holder >= 0, strong[holder], UNKNOWN).astype(np.int8)
    phase[~host] = UNKNOWN
    del holder

    weak = _named_marks(recording)
    said = weak
    if (weak >= 0).any():
        range_row = nearest(weak >= 0, parent)
        said = np.where(range_row >= 0, weak[range_row], weak)
        del range_row
    use = host & (phase < 0) & (said >= 0) & (said != BACKWARD)
    phase[use] = said[use]

    threads = recording.threads
    _fill_backward_threads(phase, threads, recording, host, strong)
    mark = (
        strong
        if (strong == BACKWARD).any()
        else _marks_of_launches(recording, launch, step, strong, said)
    )
    told = host & (phase < 0) & (mark >= 0)
    phase[told] = mark[told]
    working = np.zeros(int(threads.max(initial=0)) + 1, bool)
    working[threads[operator | (host & (step >= 0))]] = True
    unsaid = host & (phase < 0) & working[threads]
    told_by_order = _fill_by_order(recording, phase, unsaid, step, mark, forward_of)
    # A range named backward often holds the loss as well: what comes before the first node stays forward.
    in_range = unsaid & (said == BACKWARD)
    phase[in_range & ((phase != FORWARD) | ~(mark == BACKWARD).any())] = BACKWARD
    assumed = unsaid & ~in_range & (not told_by_order and not operator.any())
    _free_closures(recording, phase, strong, forward_of, parent)

    loss = operator & (phase == FORWARD) & recording.named(LOSS_OPERATOR, "operator")
    phase[recording.named(STEP_MARKER)] = UNKNOWN
    if loss.any():
        phase[(nearest(loss, parent) >= 0) & (phase == FORWARD)] = LOSS
    return phase, assumed


def _strong_marks(recording: Recording, host: np.ndarray) -> np.ndarray:
    """Return the phase that a row's own name states beyond doubt."""
    mark = np.full(len(recording), UNKNOWN, np.int8)
    if "phase" in recording.columns:  # the file says it of each operator
        codes = [
            PHASES.index(text) if text in PHASES else UNKNOWN for text in recording.text("phase")
        ]
        mark = np.array([*codes, UNKNOWN], np.int8)[recording["phase"]]
        mark[~host] = UNKNOWN
    mark[recording.named(DATA_RANGE, "annotation")] = DATA
    mark[recording.named(OPTIMIZER_RANGE, *WORK)] = OPTIMIZER
    mark[recording.named(ZERO_GRAD_RANGE, *WORK)] = OTHER
    mark[recording.named(NODE_RANGE, *WORK) | recording.named(REDUCER_RANGE, *WORK)] = BACKWARD
    mark[recording.named(OLD_NODE, "operator")] = BACKWARD
    return mark


def _marks_of_launches(
    recording: Recording, launch: np.ndarray, step: np.ndarray, strong: np.ndarray, said: np.ndarray
) -> np.ndarray:
    """Return the marks, with those that the launching thread and the kernels' names tell."""
    mark = strong.copy()
    calls, names = launched(recording, launch)
    if len(calls):
        engine = autograd_threads(recording, calls, names, said)[recording.threads]
        mark[engine & (mark < 0) & (recording.is_kind("operator", "annotation", "runtime"))] = (
            BACKWARD
        )
        mark_by_kernels(recording, calls, names, step, said, mark)
    return mark


def _named_marks(recording: Recording) -> np.ndarray:
    mark = np.full(len(recording), UNKNOWN, np.int8)
    annotation = recording.is_kind("annotation")
    if annotation.any():
        for pattern, phase in NAMED_RANGES:
            mark[(mark < 0) & recording.named(pattern, "annotation")] = phase
    return mark


def _fill_backward_threads(
    phase: np.ndarray,
    threads: np.ndarray,
    recording: Recording,
    host: np.ndarray,
    strong: np.ndarray,
) -> None:
    """On a thread that runs autograd nodes and no forward operators, the rest is backward as well."""
    nodes = _count(threads, host & (strong == BACKWARD))
    others = _count(threads, recording.is_kind("operator") & (phase != BACKWARD))
    other_marks = _count(threads, (strong >= 0) & (strong != BACKWARD))
    engine = (nodes > others) & (other_marks == 0)
    phase[host & (phase < 0) & engine[threads]] = BACKWARD


def _count(threads: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the number of flagged rows of each thread."""
    return np.bincount(threads[rows], minlength=int(threads.max(initial=0)) + 1)


def _fill_by_order(
    recording: Recording,
    phase: np.ndarray,
    unsaid: np.ndarray,
    step: np.ndarray,
    strong: np.ndarray,
    forward_of: np.ndarray,
) -> bool:
    """Fill rows that nothing marks, from what comes before and after them in their step.

    Returns whether there is anything to tell by.

    Anchors are autograd nodes, optimizers, and forward operators that a node refers to.
    Before a backward pass is forward; between two nodes is backward; after the last
    node is other, unless a forward operator follows (gradient accumulation).
    """
    start = recording["start_ns"]
    anchor = np.full(len(phase), UNKNOWN, np.int8)
    linked = forward_of[forward_of >= 0]
    anchor[linked[strong[linked] < 0]] = FORWARD
    sure = (strong == BACKWARD) | (strong == OPTIMIZER)
    anchor[sure] = strong[sure]
    anchor[(phase == BACKWARD) & (anchor < 0) & recording.is_kind("operator")] = BACKWARD
    anchors = np.flatnonzero(anchor >= 0)
    if not len(anchors):
        phase[unsaid] = FORWARD
        return False
    times = start[anchors]
    if (times[1:] < times[:-1]).any():
        anchors = anchors[np.argsort(times, kind="stable")]
        times = start[anchors]
    rows = np.flatnonzero(unsaid)
    slot = np.searchsorted(times, start[rows], side="left")
    after = anchors[np.minimum(slot, len(anchors) - 1)]
    before = anchors[np.maximum(slot - 1, 0)]
    outside = step[rows] < 0
    after_is = np.where(
        (slot < len(anchors)) & (outside | (step[after] == step[rows])), anchor[after], UNKNOWN
    )
    before_is = np.where(
        (slot > 0) & (outside | (step[before] == step[rows])), anchor[before], UNKNOWN
    )
    result = np.full(len(rows), FORWARD, np.int8)
    result[(before_is == BACKWARD) & (after_is == BACKWARD)] = BACKWARD
    result[(before_is == BACKWARD) & ((after_is == OPTIMIZER) | (after_is < 0))] = OTHER
    result[(before_is == OPTIMIZER) & (after_is != FORWARD) & (after_is != BACKWARD)] = OTHER
    phase[rows] = result
    return True


def _free_closures(
    recording: Recording,
    phase: np.ndarray,
    strong: np.ndarray,
    forward_of: np.ndarray,
    parent: np.ndarray,
) -> None:
    """An optimizer that calls a closure runs forward and backward inside its own range.

    What comes before a closure's first autograd node is forward, from the first forward
    operator on; between two nodes is backward; the rest is the optimizer's own work.
    """
    start = recording["start_ns"]
    duration = recording["duration_ns"]
    threads = recording.threads
    nodes = np.flatnonzero(strong == BACKWARD)
    nodes = nodes[np.argsort(start[nodes], kind="stable")]
    node_start = start[nodes]
    optimizers = np.flatnonzero(strong == OPTIMIZER)
    stops = start[optimizers] + duration[optimizers]
    first, last = (np.searchsorted(node_start, edge) for edge in (start[optimizers], stops))
    closures = optimizers[first < last]
    if not len(closures):
        return
    end = start + duration
    holder = nearest(strong >= 0, parent)
    forward = _outermost_operators(recording, forward_of[forward_of >= 0], parent, strong)
    anchors = np.concatenate([nodes, forward])
    is_node = np.arange(len(anchors)) < len(nodes)
    order = np.lexsort((is_node, start[anchors]))
    anchors = anchors[order]
    is_node = is_node[order]
    anchor_start = start[anchors]
    for row in closures.tolist():
        inside = np.arange(*np.searchsorted(start, [start[row], end[row]]))
        inside = inside[
            (holder[inside] == row) & (threads[inside] == threads[row]) & (inside != row)
        ]
        begin, stop = np.searchsorted(anchor_start, [start[row], end[row]])
        here = anchor_start[begin:stop]
        node_here = is_node[begin:stop]
        slot = np.searchsorted(here, start[inside], side="right")
        after_node = (slot > 0) & node_here[np.maximum(slot - 1, 0)]
        before_node = (slot < len(here)) & node_here[np.minimum(slot, len(here) - 1)]
        own = after_node & ~before_node
        phase[inside[~own & after_node]] = BACKWARD
        phase[inside[~own & ~after_node]] = FORWARD
        running = end[anchors[begin:stop]][np.maximum(slot - 1, 0)] > start[inside]
        phase[inside[own & running]] = BACKWARD


def _outermost_operators(
    recording: Recording, rows: np.ndarray, parent: np.ndarray, strong: np.ndarray
) -> np.ndarray:
    """Return the outermost operators around some rows, each once; nothing that a phase's own range holds."""
    operator = np.append(recording.is_kind("operator") & (strong < 0), False)
    rows = unique(rows)
    rows = rows[operator[rows]]
    while (up := operator[parent[rows]]).any():
        rows = unique(np.where(up, parent[rows], rows))
    return rows
