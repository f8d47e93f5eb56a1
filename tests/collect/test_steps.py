"""Steps: where they come from, what belongs to them, and how long they took."""

from typing import Any

import pytest
from kineto_text import (
    ENGINE,
    MAIN,
    call,
    document,
    kernel,
    note,
    op,
    phases,
    row,
    rows_named,
    training,
    write,
)
from nsys_database import call as nsys_call
from nsys_database import write_export
from shared import shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.errors import GraphError, TraceError


def test_a_step_is_measured_from_completion_to_completion(imported):
    #  the last kernel of step n ends at 640 + 30 + n; host work of the step ends at 780
    trace = imported(training(3))
    steps = trace.metadata["steps"]
    assert trace.metadata["step_source"] == "ProfilerStep# ranges"
    assert [step["name"] for step in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert [step["completion_ns"] for step in steps] == [780_000, 1_780_000, 2_780_000]
    assert [step["measured_ns"] for step in steps] == [None, 1_000_000, 1_000_000]
    assert [step["covered"] for step in steps] == [False, True, True]
    assert steps[0]["why_not"]


def test_device_work_counts_for_the_step_that_launched_it(imported):
    events = training(2)
    events.append(call("cudaLaunchKernel", 900, 10, 71))
    events.append(kernel("late<float>", 1500, 400, 71, stream=8))
    trace = imported(events)
    assert trace.values("step", rows_named(trace, "late<float>")) == [0]
    assert trace.metadata["steps"][0]["completion_ns"] == 1_900_000
    assert (
        trace.metadata["steps"][1]["measured_ns"] == 0
    )  # the second step was done before the first one's work


def test_the_only_step_runs_from_its_start(imported):
    [step] = imported(training(1)).metadata["steps"]
    assert (step["measured_ns"], step["covered"]) == (780_000, True)


def test_the_only_step_is_not_covered_when_earlier_work_runs_in_it(imported):
    [step] = imported([*training(1), kernel("early", 1, 5, 999)]).metadata["steps"]
    assert step["covered"] is False
    assert "before the window" in step["why_not"]


def test_launches_into_a_graph_that_is_captured_lost_no_work(imported):
    launches = [call("cudaLaunchKernel", 700 + 3 * n, 2, 900 + n) for n in range(9)]
    [lost] = imported([*training(1), *launches]).metadata["steps"]
    assert "not recorded" in lost["why_not"]
    capture = [call("cudaStreamBeginCapture", 698, 1, 950), call("cudaStreamEndCapture", 730, 1, 951)]
    [step] = imported([*training(1), *capture, *launches]).metadata["steps"]
    assert step["covered"]


@pytest.mark.parametrize(("steps", "covered"), [(4, [False, True, True, False]), (2, [False, True])])
def test_a_step_within_which_the_recording_ends_is_left_out_beside_others(imported, steps, covered):
    events = [event for event in training(steps) if event["ts"] < 1000 * steps - 400]
    assert [step["covered"] for step in imported(events).metadata["steps"]] == covered


def test_what_another_thread_launches_ahead_cuts_nothing_off(imported):
    # a loader's last copy is for a step beyond the recording, so no work of it is there
    ahead, own = (call("cudaLaunchKernel", 3_500, 400, 990, **on) for on in ({"tid": 77}, {}))
    for last, covered in ((ahead, True), (own, False)):
        assert imported([*training(4), last]).metadata["steps"][-1]["covered"] is covered


def without_markers(events):
    return [event for event in events if not str(event["name"]).startswith("ProfilerStep")]


def test_without_profiler_steps_the_optimizer_ends_them(imported):
    trace = imported(without_markers(training(3)))
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    steps = trace.metadata["steps"]
    assert [step["end_ns"] for step in steps] == [
        699_000,
        1_699_000,
        2_699_000,
    ]  # the loader at 1 us is the origin
    assert [step["measured_ns"] for step in steps] == [
        None,
        1_001_000,
        1_001_000,
    ]  # each last kernel is 1 us longer


def test_an_optimizer_that_joins_another_every_second_time_makes_no_steps_of_its_own(imported):
    events = without_markers(training(4))
    events += [note("Optimizer.step#Embeddings.step", 1000 * step + 705, 20) for step in (1, 3)]
    trace = imported(events)
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    assert [step["end_ns"] for step in trace.metadata["steps"]] == [699_000, 1_724_000, 2_699_000, 3_724_000]


def test_a_marker_pattern_chooses_any_ranges(imported):
    events = without_markers(training(3)) + [
        note(f"iteration {index}", 1000 * index, 990) for index in range(3)
    ]
    trace = imported(events, step_marker=r"^iteration \d+$")
    assert [step["name"] for step in trace.metadata["steps"]] == ["iteration 0", "iteration 1", "iteration 2"]
    with pytest.raises(TraceError, match="no annotation matches"):
        imported(events, step_marker="epoch")
    with pytest.raises(TraceError, match="not a regular expression"):
        imported(events, step_marker="(")
    with pytest.raises(TraceError, match="only 'auto'"):
        imported(events, steps="often")


def test_an_optimizer_range_cut_off_by_the_end_lasts_to_the_end(imported):
    events = without_markers(training(3))
    last = next(event for event in reversed(events) if str(event["name"]).startswith("Optimizer.step"))
    last["dur"] = 0
    trace = imported(events)
    assert trace.metadata["steps"][-1]["completion_ns"] == 2_779_000
    assert phases(trace, "kernel")["multi_tensor_apply<float>"] == {"optimizer"}


def test_threads_that_do_no_work_belong_to_no_step(imported):
    watchdog = [call("cudaEventQuery", 100 * index, 2, 5000 + index, tid=-9) for index in range(20)]
    trace = imported([*training(2), *watchdog])
    lines = rows_named(trace, "cudaEventQuery")
    assert set(trace.values("step", lines)) == {None}
    assert set(trace.values("phase", lines)) == {None}


# First iterations are told by what they do once, and left out with the reason


STEP = 1000  # us


def steps_of(tmp_path, *, longer, count=6):
    """Steps of 1,000 us with one operator and one kernel each; some hold more, and last as much longer."""
    events = []
    at = 0
    for number in range(count):
        more = longer.get(number, [])
        events.append(op("aten::mm", at + 10, 50))
        events.append(call("cudaLaunchKernel", at + 20, 10, number + 1))
        events.append(kernel("gemm", at + 40, 900, number + 1))
        extra = 0
        for each in more:
            events.append({**each, "ts": at + 100 + each["ts"]})
            extra = max(extra, each["ts"] + each["dur"]) if each["cat"] != "kernel" else extra
        events.append(op("aten::item", at + 900 + extra, 90))
        events.append(note(f"ProfilerStep#{number}", at, STEP - 1 + extra))
        at += STEP + extra
    return import_trace([write(tmp_path / "trace.json", document(events))]).metadata["steps"]


def left_out(steps):
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


def single(tmp_path, first_us, again_us):
    """Return the notes of one step: two kernels launched three times each, one of them longer twice."""
    events = [note("ProfilerStep#0", 0, 90_000)]
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


def compiling(*, ms):
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


Events = list[dict[str, Any]]


def loop(names, *, inner=None, outside_us=0, tid=MAIN):
    """A loop of steps 1,000 us apart: a range of 900 us with four kernels of 100 us, and one behind it.

    step  |range.........................|
    inner   |0   |1   |2   |3   |
    call     l    l    l    l              l
    """
    events = []
    for step, name in enumerate(names):
        at = STEP * step
        events.append(note(name, at, 900, tid=tid))
        for part in range(4):
            ids, begin = 10 * step + part, at + 10 + 200 * part
            if inner:
                events.append(note(inner[part], begin, 150, tid=tid))
            events.append(op("aten::mm", begin + 10, 50, tid=tid))
            events.append(call("cudaLaunchKernel", begin + 20, 10, ids, tid=tid))
            events.append(kernel("gemm", begin + 40, 100, ids))
        if outside_us:
            events.append(call("cudaLaunchKernel", at + 950, 10, 10 * step + 9, tid=tid))
            events.append(kernel("other", at + 970, outside_us, 10 * step + 9, stream=8))
    return events


@pytest.fixture
def steps(imported):
    def load(events):
        trace = imported(events)
        return trace.metadata["step_source"], [step["name"] for step in trace.metadata["steps"]]

    return load


@pytest.mark.parametrize(
    "names",
    [
        ["step 7", "step 8", "step 9"],
        ["Warm-up Step 1", "Warm-up Step 2", "Warm-up Step 3"],
        ["[Trainer]TrainIter3", "[Trainer]TrainIter4", "[Trainer]TrainIter5"],
        ["train_step", "train_step", "train_step"],
        ["execute_model", "execute_model", "execute_model"],
        ["step[DECODE bs=32]", "step[EXTEND bs=1 tokens=512]", "step[DECODE bs=33]"],
        ["execute_context_1(128)_generation_0(0)", "execute_context_0(0)_generation_1(1)"],
        ["frame 3", "frame 4", "frame 5"],
    ],
)  # fmt: skip
def test_ranges_that_say_they_are_steps_are(steps, names):
    source, found = steps(loop(names))
    assert found == names
    assert source.startswith("ranges such as ")


def test_a_single_step_of_an_engine_is_a_step(steps):
    assert steps(loop(["step[DECODE bs=32]"])) == ("ranges such as 'step'", ["step[DECODE bs=32]"])


@pytest.mark.parametrize(
    "names",
    [
        ["layer 0", "layer 1", "layer 2"],
        ["conv1", "conv2", "conv3"],
        ["micro batch 0", "micro batch 1", "micro batch 2"],
        ["optimizer step 1", "optimizer step 2", "optimizer step 3"],
        ["nn::BatchNorm step 1", "nn::BatchNorm step 2", "nn::BatchNorm step 3"],
        ["encoder.layers.0", "encoder.layers.1", "encoder.layers.2"],
        ["frame 3", "frame 5", "frame 4"],  # no counter
        ["frame 3", "frame 4"],  # too few to tell
        ["tile 0 of 1", "tile 1 of 2", "tile 2 of 3"],  # two numbers grow
    ],
)
def test_ranges_that_only_carry_a_number_are_no_steps(steps, names):
    source, _ = steps(loop(names))
    assert not source.startswith("ranges such as")


def test_the_outer_ranges_are_the_steps(steps):
    names = ["iteration 0", "iteration 1", "iteration 2"]
    inner = ["batch 0", "batch 1", "batch 2", "batch 3"]
    assert steps(loop(names, inner=inner))[1] == names
    assert steps(loop(names, inner=["step 1"] * 4))[1] == names


def test_steps_hold_most_of_the_work(steps):
    names = ["step 0", "step 1", "step 2"]
    assert steps(loop(names, outside_us=390))[1] == names
    source, _ = steps(loop(names, outside_us=450))
    assert not source.startswith("ranges such as")


def test_each_thread_counts_for_itself(steps):
    def both():
        yield from loop(["step 0", "step 1", "step 2"])
        for step in range(6):  # a loader that counts faster and launches nothing of its own
            yield note(f"step {step}", 500 * step, 300, tid=ENGINE)

    assert steps(list(both()))[1] == ["step 0", "step 1", "step 2"]


def four_steps(*, launched=True, ran=True, ids=(0, 0)):
    """Four steps of an operator that launches a kernel; `ids` are added to those of call and kernel."""
    events = []
    for step in range(4):
        at = 1000 * step
        events += [note(f"ProfilerStep#{step}", at, 1000), op("aten::mm", at + 10, 100, External_id=step)]
        if launched:
            events.append(call("cudaLaunchKernel", at + 20, 10, step + 1 + ids[0]))
        if ran:
            events.append(kernel("sgemm", at + 40, 600, step + 1 + ids[1]))
    return events


def refused(tmp_path, events):
    with pytest.raises(GraphError) as caught:
        daydream.replay(daydream.load(write(tmp_path / "t.json", document(events))))
    return str(caught.value)


def test_launches_without_device_work_are_no_work_of_the_cpu_alone(tmp_path):
    assert "4 calls launched work on a device, but no device work was recorded" in refused(
        tmp_path, four_steps(ran=False)
    )
    assert len(daydream.replay(daydream.load(write(tmp_path / "t.json", document(four_steps())))).steps) == 3


def test_memory_of_a_device_without_its_work_is_no_work_of_the_cpu_alone(tmp_path):
    alone = four_steps(launched=False, ran=False)
    memory = {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": 15, "s": "t"}
    args = {"Addr": 64, "Bytes": 512, "Device Type": 1, "Device Id": 0}
    assert "memory of a device was allocated" in refused(tmp_path, [*alone, {**memory, "args": args}])
    for name in ("aten::cudnn_convolution", "nccl:all_to_all"):
        assert "operators ran that only a device has" in refused(tmp_path, [*alone, op(name, 30, 5)])
    on_host = {**memory, "args": {**args, "Device Type": 0, "Device Id": -1}}
    trace = daydream.load(write(tmp_path / "t.json", document([*alone, on_host])))
    assert len(daydream.replay(trace).steps) == 3


@pytest.mark.parametrize(
    "events",
    [
        four_steps(ids=(0, 100)),  # no id is of a call
        four_steps(launched=False),
        [  # all have the same id, which is none
            {**event, "args": {**event["args"], "correlation": 0}}
            if "correlation" in event["args"]
            else event
            for event in four_steps()
        ],
    ],
)
def test_kernels_that_no_call_launched_bound_no_step(tmp_path, events):
    assert "whether the CPU or the device bounds it is not known" in refused(tmp_path, events)


def test_steps_whose_launches_are_known_count_beside_others(tmp_path):
    events = [
        event for event in four_steps() if event["args"].get("correlation") != 4 or event["cat"] == "kernel"
    ]
    trace = daydream.load(write(tmp_path / "t.json", document(events)))
    assert [step["covered"] for step in trace.metadata["steps"]] == [False, True, True, False]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100_zoology_launches_without_kernels.json.gz", "268 calls launched work on a device"),
        ("symptoms/kineto_996_launches_without_kernels.json", "24 calls launched work on a device"),
        ("cuda_memory_events_without_device_rows.json.gz", "memory of a device was allocated"),
        ("symptoms/kernels_with_correlation_0.json", "bounds it is not known"),
        ("legacy_autograd_profiler_list.json.gz", "operators ran that only a device has"),
    ],
)
def test_the_shared_cases_have_no_verdict(name, said):
    with pytest.raises(GraphError, match=said):
        daydream.whatif(shared_trace(f"cases/{name}"), "scale", on="cpu", factor=0.5)


def test_an_empty_recording_is_refused_with_what_the_file_says(tmp_path):
    idle = [row("cuda_runtime", "cudaGetDeviceCount", 1, 2), note("idle", 0, 9)]
    with pytest.raises(TraceError, match="no operator, kernel or copy was recorded"):
        import_trace([write(tmp_path / "t.json", document(idle))])
    said = [
        {"severity": severity, "text": text}
        for severity, text in ((1, "Profiling has started."), (0, "No CUDA events collected."))
    ]
    tables = {"RUNTIME": [nsys_call(0, 5, 1, "cuMemFree_v2")], "DIAGNOSTIC_EVENT": said}
    with pytest.raises(TraceError, match=r"was recorded\. No CUDA events collected\.$"):
        import_trace([write_export(tmp_path / "t.sqlite", tables)])
    for name, words in (
        ("a10g_empty_window.json.gz", "no operator, kernel or copy was recorded."),
        (
            "nsys_cuda13_no_kernels_collected.sqlite.gz",
            "No CUDA events collected. Does the process use CUDA?",
        ),
    ):
        with pytest.raises(TraceError, match=words):
            import_trace([shared_trace(f"cases/{name}")])
