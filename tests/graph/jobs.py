"""Jobs of two ranks small enough to follow by hand; times in microseconds."""

from itertools import pairwise

import numpy as np
from graph.small_traces import launched, op, trace

TRANSFER = 20


def job(
    steps,
    *,
    cpu=(100, 120),
    gpu=(50, 50),
    first=50,
    skip=(0, 0),
    group=None,
    meet=True,
    pipeline=False,
    **work,
):
    """Return what two ranks would record: each step some CPU work, a kernel and an all-reduce.

    Launches take 5 and their work starts 5 after they began, or 1 behind the work before it. The all-reduce
    transfers when both have arrived. The CPU never waits. `first` is rank 1's kernel of the first step.
    `skip` steps of a rank are not recorded. Ranks that do not `meet` have no all-reduce; in a `pipeline`
    rank 0 sends rank 1 a message instead. `work` are more columns of the CPU work.
    """
    #  rank r  |cpu[r]|launch 5|launch 5|cpu[r]|...
    #                   |gpu[r]      |1|all-reduce: waits for the other, 20|
    now = [0, 0]
    free = [-1, -1]
    rows = []
    borders = ([0], [0])
    for n in range(steps):
        arrived = []
        for rank in (0, 1):
            at = now[rank] + cpu[rank]
            begin = max(at + 5, free[rank] + 1)
            end = begin + (first if n == 0 and rank == 1 else gpu[rank])
            arrived.append(max(at + 10, end + 1))
            if n >= skip[rank]:
                rows += [op("work", now[rank], at, rank=rank, **work)]
                rows += launched("k", at, begin, end, rank=rank)
            now[rank] = at + 10
            borders[rank].append(now[rank])
        free = [max(arrived) + TRANSFER] * 2 if meet else arrived
        for rank in (0, 1):
            if meet and n >= skip[rank]:
                columns = {"rank": rank, "kind": "collective", "collective": "all_reduce", "bytes": 8}
                each = {} if group is None else {"group": group[rank]}
                if pipeline:
                    each |= {"collective": ("send", "recv")[rank], "peer": 1 - rank}
                rows += launched("reduce", now[rank] - 5, arrived[rank], free[rank], **(columns | each))
    found = trace(rows)
    found.metadata["steps"] = []
    column = np.full(len(found), -1)
    for rank in (0, 1):
        mine = found["rank"] == rank
        launch = np.where(found.is_kind("kernel", "collective"), found["parent"], np.arange(len(found)))
        completed = None
        for n, (begin, end) in enumerate(pairwise(borders[rank])):
            if n < skip[rank]:
                continue
            at = found["start_ns"][launch]
            inside = mine & (at >= 1000 * begin) & (at < 1000 * end)
            column[inside] = len(found.metadata["steps"])
            done = int((found["start_ns"] + found["duration_ns"])[inside].max())
            found.metadata["steps"].append({
                "name": f"step {n}", "rank": rank, "start_ns": 1000 * begin, "end_ns": 1000 * end,
                "covered": completed is not None,
                "measured_ns": done - (1000 * begin if completed is None else completed),
            })  # fmt: skip
            completed = done
    found.columns["step"] = column
    return found
