"""What calls of operators keep for the backward pass: their input, their result, and until where."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from daydream.costs.workload.calls import forward_rows
from daydream.memory.allocations import Allocations, Parts, parts_of, place_before
from daydream.memory.asked import calls_that_made, in_phase
from daydream.memory.enclosing import outermost, rows_that
from daydream.memory.readers import input_of_parts, next_call
from daydream.trace.schema import UNKNOWN


@dataclass(frozen=True)
class KeptCalls:
    """Calls of the forward pass, an entry each, as they are in the table when this is worked out.

    Attributes:
        calls: the calls as parts of the program; the last of their keys is the row of the trace.
        done: where the call is done, float64, shape (calls,).
        node: where its autograd node is done, float64, shape (calls,); -inf where it has none.
        input: row of the table that holds what it reads, int64, shape (calls,); -1 if not known.
        output: row of the table that holds its result, likewise.
        besides: what else each row is that a call made and left: the call, -1 for none; int64, shape (rows,).
        freed_by: the call whose node frees each row, -1 for none; int64, shape (rows,).
    """

    calls: Parts
    done: np.ndarray
    node: np.ndarray
    input: np.ndarray
    output: np.ndarray
    besides: np.ndarray
    freed_by: np.ndarray

    def __len__(self) -> int:
        return len(self.calls)

    def drop_inputs(self, held: Allocations, which: np.ndarray | None = None) -> None:
        """Let inputs go when the last of these calls has read them, if a node of these freed them.

        Args:
            held: the allocations.
            which: of which calls, bool, shape (calls,); of all if not given.
        """
        chosen = (self.input >= 0) & (True if which is None else which)
        rows = self.input[chosen]
        own = self.freed_by[rows] >= 0
        ends = np.full(len(held), -np.inf)
        np.maximum.at(ends, rows[own], self.done[chosen][own])
        found = np.unique(rows[own])
        held["end"][found] = np.minimum(held["end"][found], ends[found])

    def keep(self, held: Allocations, rows: np.ndarray, which: np.ndarray | None = None) -> None:
        """Hold one row for each call, its input say, until its node is done.

        Args:
            held: the allocations.
            rows: int64, shape (calls,); -1 for none.
            which: of which calls, bool, shape (calls,); of all if not given.
        """
        chosen = (rows >= 0) & (True if which is None else which)
        np.maximum.at(held["end"], rows[chosen], self.node[chosen])

    def drop_outputs(self, held: Allocations) -> None:
        """Let results go that the nodes of their own calls freed, at the least.

        Where the call behind keeps what it reads, as products do, they stay until its node is done, which
        runs right before: they are held as long as now.
        """
        place = np.flatnonzero(self.output >= 0)
        rows = self.output[place]
        rows = rows[self.freed_by[rows] == place]
        ends = held["end"][rows]
        held["end"][rows] = held.among(np.minimum(ends, next_call(held, rows)), ends, ends)

    def add(self, held: Allocations, nbytes: np.ndarray) -> None:
        """Hold something more for each call that has a node, from its begin until that is done.

        Args:
            held: the allocations.
            nbytes: int64, shape (calls,).
        """
        like = np.full(len(self), UNKNOWN)
        mine = np.flatnonzero(self.calls.of >= 0)
        like[self.calls.of[mine][::-1]] = mine[::-1]
        have = np.isfinite(self.node)
        begin, end = self.calls.first[have], self.node[have]
        held.add(like[have], bytes=nbytes[have], begin=begin, end=end, kind="activation")


def kept_calls(held: Allocations, pattern: str, layer: str | None = None) -> KeptCalls:
    """Return the forward calls of some operators, and what each reads, gives and keeps.

    Args:
        held: the allocations.
        pattern: regular expression on names of operators; of calls within each other the outermost counts.
        layer: shell pattern on the layer; all if not given.
    """
    call = calls_that_made(held, pattern)
    made = (call >= 0) & held.where(layer=layer)
    calls = parts_of(held, made & (in_phase(held, "forward") | in_phase(held, "loss")), call)
    nodes = parts_of(held, made & in_phase(held, "backward"), call)
    at = nodes.find(calls.keys)
    node = np.where(at >= 0, np.append(nodes.until, 0)[at], -np.inf)
    node[at >= 0] = place_before(held, node[at >= 0])
    done = place_before(held, calls.until)
    stays = np.flatnonzero((calls.of >= 0) & (held["end"] > np.append(done, np.inf)[calls.of]))
    order = stays[np.lexsort((held["begin"][stays], -held["bytes"][stays], calls.of[stays]))]
    first = np.unique(calls.of[order], return_index=True)
    output = np.full(len(calls), UNKNOWN)
    output[first[0]] = order[first[1]]
    besides = np.full(len(held), UNKNOWN)
    besides[stays] = calls.of[stays]
    besides[output[output >= 0]] = UNKNOWN
    return KeptCalls(
        calls,
        done,
        node,
        input_of_parts(held, calls),
        output,
        besides,
        _freed_by(held, pattern, calls),
    )


def _freed_by(held: Allocations, pattern: str, calls: Parts) -> np.ndarray:
    """Return the call within whose autograd node each row is freed, -1 for none."""
    trace = held.trace
    up = np.full(len(held), UNKNOWN)
    rows = np.flatnonzero(in_phase(held, "backward", at="end") & (held["end_row"] >= 0))
    up[rows] = forward_rows(trace, held["end_row"][rows])
    found = outermost(trace, up, rows_that(trace, re.compile(pattern).search))
    keys = np.stack([held["rank"], held["repeat"], found], axis=1)
    return calls.find(keys)
