"""First iterations are told by what they do once, and left out with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto_text import call, document, kernel, note, op, write

from daydream.collect.importers import import_trace

STEP = 1000  # us


def steps_of(
    tmp_path: Path, *, longer: dict[int, list[dict[str, Any]]], count: int = 6
) -> list[dict[str, Any]]:
    """Steps of 1,000 us with one operator and one kernel each; some hold more, and last as much longer."""
    events: list[dict[str, Any]] = []
    at = 0
    for number in range(count):
        more = longer.get(number, [])
        events.append(op("aten::mm", at + 10, 50))
        events.append(call("cudaLaunchKernel", at + 20, 10, number + 1))
        events.append(kernel("gemm", at + 40, 900, number + 1))
        extra = 0
        for row in more:
            events.append({**row, "ts": at + 100 + row["ts"]})
            extra = max(extra, row["ts"] + row["dur"]) if row["cat"] != "kernel" else extra
        events.append(op("aten::item", at + 900 + extra, 90))
        events.append(note(f"ProfilerStep#{number}", at, STEP - 1 + extra))
        at += STEP + extra
    return import_trace([write(tmp_path / "trace.json", document(events))]).metadata["steps"]


def left_out(steps: list[dict[str, Any]]) -> list[int]:
    return [number for number, step in enumerate(steps) if not step["covered"]]


def test_a_step_that_loads_modules_is_left_out_and_said(tmp_path):
    load = call("cuModuleLoadData", 0, 5000, 900)
    steps = steps_of(tmp_path, longer={1: [load], 2: [op("aten::batch_norm", 0, 800)]})
    assert left_out(steps) == [0, 1, 2]
    assert steps[1]["why_not"] == (
        "a first iteration: 5 ms of work that no later step repeats, most of it in cuModuleLoadData"
    )
    assert steps[2]["why_not"].endswith("most of it in aten::batch_norm")


@pytest.mark.parametrize(
    "row",
    [
        note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 5000),
        op("aten::dataloader_next", 0, 5000),
        call("cudaStreamSynchronize", 0, 5000, 900),
    ],
)
def test_a_step_that_waits_is_part_of_the_run(tmp_path, row):
    assert left_out(steps_of(tmp_path, longer={1: [row]})) == [0]


def test_what_comes_again_is_part_of_the_run(tmp_path):
    evaluate = op("aten::evaluate", 0, 5000)
    assert left_out(steps_of(tmp_path, longer={1: [evaluate], 5: [evaluate]})) == [0]


def test_only_the_begin_of_a_recording_has_first_iterations(tmp_path):
    save = op("aten::save", 0, 5000)
    assert left_out(steps_of(tmp_path, longer={2: [save]})) == [0]


def test_too_few_steps_do_not_tell_what_is_usual(tmp_path):
    load = call("cuModuleLoadData", 0, 5000, 900)
    assert left_out(steps_of(tmp_path, longer={1: [load]}, count=3)) == [0]
    assert left_out(steps_of(tmp_path, longer={1: [load]}, count=4)) == [0, 1]


def single(tmp_path: Path, first_us: int, again_us: int) -> list[str]:
    """Return the notes of one step: two kernels launched three times each, one of them longer twice."""
    events: list[dict[str, Any]] = [note("ProfilerStep#0", 0, 90_000)]
    at = 5
    for number, (name, took) in enumerate(
        [("gemm", first_us), ("relu", 10), ("gemm", again_us), ("relu", 10), ("gemm", 10), ("relu", 10)]
    ):
        events.append(call("cudaLaunchKernel", at, took, number + 1))
        events.append(kernel(name, at + took, 20, number + 1))
        at += took + 20
    return import_trace([write(tmp_path / "trace.json", document(events))]).metadata["notes"]


def test_a_single_step_that_loads_modules_says_so(tmp_path):
    assert "\n".join(single(tmp_path, 5000, 10)) == (
        "The only step holds start-up: 5 ms in first launches of 1 kernel, which load their modules "
        "(the longest 5 ms). A later pass has none of it."
    )
    assert single(tmp_path, 10, 5000) == []  # a launch that found the queue full
    assert single(tmp_path, 100, 10) == []


def compiling(*, ms: int) -> list[dict[str, Any]]:
    """Return what torch records of one function that it compiles, ranges within ranges."""
    return [
        note("entire_frame_compile (dynamo_timed)", 0, 1000 * ms),
        note("_compile.compile_inner (dynamo_timed)", 10, 1000 * ms - 20),
        note("backend_compile (dynamo_timed)", 20, 500 * ms),
    ]


def test_a_step_that_compiles_anew_amid_the_others_is_left_out_and_said(tmp_path):
    steps = steps_of(tmp_path, longer={3: compiling(ms=40)})
    assert left_out(steps) == [0, 3]
    assert steps[3]["why_not"] == "the program compiled 1 function anew in it, 40 ms of 41 ms"


def test_compiling_that_hardly_shows_or_never_ends_is_part_of_the_run(tmp_path):
    assert left_out(steps_of(tmp_path, longer={3: [note("cache (dynamo_timed)", 0, 200)]})) == [0]
    each = {number: compiling(ms=40) for number in range(6)}
    assert left_out(steps_of(tmp_path, longer=each)) == [0]
