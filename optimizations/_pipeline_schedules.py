"""Pipeline schedules: which pass of which micro-batch a GPU runs when, and which blocks it holds.

With more than one chunk of blocks a GPU, chunk c is on GPU c mod stages ("interleaved"). Sources: Huang et
al., "GPipe" (2019): all forward passes, then all backward passes; Narayanan et al., "PipeDream" (2019): one
forward, one backward (1F1B) once the pipeline is full; Narayanan et al., "Efficient large-scale
language model training on GPU clusters using Megatron-LM" (2021), section 2.2: interleaved 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from daydream import GraphError


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk of blocks."""

    backward: bool
    chunk: int
    batch: int


def passes_of_stages(schedule: str, stages: int, batches: int, chunks: int = 1) -> list[list[Pass]]:
    """Return for each GPU its passes in the order in which it runs them; `chunks` is those of one GPU."""
    if chunks > 1 and batches % stages:
        raise GraphError(
            f"interleaved stages take micro-batches by the {stages}; {batches} is not a multiple of it"
        )
    total = batches * chunks
    found = []
    for stage in range(stages):
        turns = [divmod(turn, stages * chunks) for turn in range(total)]
        forward, backward = [], []
        for turn, (round_, place) in enumerate(turns):
            chunk, batch = (place // stages, round_ * stages + place % stages) if chunks > 1 else (0, turn)
            forward.append(Pass(False, chunk * stages + stage, batch))
            backward.append(Pass(True, (chunks - 1 - chunk) * stages + stage, batch))
        ahead = total
        if schedule != "gpipe":
            ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
        ahead = min(ahead, total)
        mixed = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        found.append([*forward[:ahead], *mixed, *backward[total - ahead :]])
    return found


def in_order(of_stages: Sequence[Sequence[Pass]], chunks: int) -> list[tuple[int, Pass]]:
    """Return (GPU, pass) of all of them in an order in which they can be done; `chunks` of all GPUs."""
    done: set[Pass] = set()
    left = [list(passes) for passes in of_stages]
    order: list[tuple[int, Pass]] = []
    while any(left):
        ready = [
            (stage, passes[0])
            for stage, passes in enumerate(left)
            if passes and all(need in done for need in _needs(passes[0], chunks))
        ]
        if not ready:
            raise GraphError("no order of passes satisfies this schedule")
        for stage, _ in ready:
            left[stage].pop(0)
        done.update(one for _, one in ready)
        order += ready
    return order


def _needs(one: Pass, chunks: int) -> list[Pass]:
    if not one.backward:
        return [one._replace(chunk=one.chunk - 1)] if one.chunk else []
    if one.chunk == chunks - 1:
        return [one._replace(backward=False)]
    return [one._replace(chunk=one.chunk + 1)]


def equal_parts(times: Sequence[int], parts: int) -> list[int]:
    """Return where each of `parts` consecutive parts of the times begins, so that the longest is shortest.

    Of several such divisions the one with the fewest in the last parts.
    """
    count = len(times)
    sums = [0]
    for time in times:
        sums.append(sums[-1] + time)
    best = [[0] * (count + 1) for _ in range(parts + 1)]  # longest part of the first `i` times in `k` parts
    cut = [[0] * (count + 1) for _ in range(parts + 1)]
    best[1] = list(sums)
    for k in range(2, parts + 1):
        for i in range(k, count + 1):
            choices = [(max(best[k - 1][j], sums[i] - sums[j]), -j) for j in range(k - 1, i)]
            longest, at = min(choices)
            best[k][i], cut[k][i] = longest, -at
    begins, end = [], count
    for k in range(parts, 0, -1):
        begin = cut[k][end] if k > 1 else 0
        begins.append(begin)
        end = begin
    return begins[::-1]
