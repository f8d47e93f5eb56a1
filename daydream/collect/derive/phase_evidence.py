"""Phases where no autograd range was recorded: the thread that launches, and what kernels are called.

The autograd engine runs the backward pass of a device on a thread of its own, and the
thread that called `backward()` stands still until it is done. So a thread whose launches
lie inside ranges named backward, or which launches backward kernels, or whose launches are
followed by the optimizer's on the other thread, is the engine's.
"""

from __future__ import annotations

import re

import numpy as np

from daydream.arrays import unique
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import PHASES, UNKNOWN

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))

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
SOON, MOST_TURNS = 5, 0.5
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
        named = backward[mine].mean() >= NAMED and backward[mine].mean() > backward[of_call == caller].mean()
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


def _inside_ranges(recording: Recording, calls: np.ndarray, said: np.ndarray, caller: int) -> np.ndarray:
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
    threads, start = recording.threads, recording["start_ns"]
    for number, thread in sorted(set(zip(step[chosen].tolist(), threads[chosen].tolist(), strict=True))):
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
