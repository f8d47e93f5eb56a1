"""What the HTML report draws: spans that become fewer where they are too many, a path that adds up."""

from __future__ import annotations

import numpy as np
import pytest
from test_html_report import a_replay

from daydream.report.html.step import MOST_STRETCHES, StepPath
from daydream.report.timeline import Spans, coarsened


def many_spans(number: int = 40_000) -> Spans:
    random = np.random.default_rng(7)
    lane = np.sort(random.integers(0, 3, number))
    duration = random.integers(100, 20_000, number)
    start = np.cumsum(duration + random.integers(0, 3_000, number)) - duration
    for each in range(3):
        start[lane == each] -= start[lane == each].min()
    zero = np.zeros(number, np.int64)
    return Spans(
        lane=lane, start_ns=start, duration_ns=duration, name=zero, kind=lane % 2, phase=zero, layer=zero,
        wait_ns=zero, why=zero, former_ns=zero - 1, flags=np.arange(number) % 50 == 0, count=zero + 1,
    )  # fmt: skip


@pytest.mark.parametrize("most", [300, 5_000, 20_000])
def test_too_many_spans_become_fewer_and_none_is_lost(most):
    spans = many_spans()
    detail = (50_000_000, 52_000_000)
    fewer = coarsened(spans, detail, most)

    assert len(fewer) <= most
    assert fewer.count.sum() == len(spans)
    assert (fewer.duration_ns >= 0).all()
    ends = [np.max((each.start_ns + each.duration_ns)[each.lane == 1]) for each in (spans, fewer)]
    assert ends[0] == ends[1]
    follows = fewer.lane[1:] == fewer.lane[:-1]
    assert ((fewer.start_ns + fewer.duration_ns)[:-1][follows] <= fewer.start_ns[1:][follows]).all()
    if most > 2_000:
        inside = (fewer.start_ns >= detail[0]) & (fewer.start_ns < detail[1])
        assert (fewer.count[inside] == 1).all()


@pytest.mark.parametrize("program", ["synchronizing", "multi_stream", "queue_full_16"])
def test_the_critical_path_adds_up_to_the_step_in_every_table(tmp_path, program):
    replay = a_replay(tmp_path, program)
    step, ns = replay.settled.typical()
    path = StepPath(replay.timeline, replay.settled.copy, step)

    assert int((path.work_ns + path.delay_ns).sum()) == ns
    assert sum(total.path_ns for total in path.totals("layer").values()) == ns
    assert sum(total.path_ns for total in path.totals("name").values()) == ns
    stretches = path.stretches()
    assert sum(each.work_ns + each.delay_ns for each in stretches) == ns
    assert sum(each.tasks for each in stretches) == len(path.task)
    assert len(stretches) <= 2 * MOST_STRETCHES + 1
    assert stretches[0].begin_ns == 0
