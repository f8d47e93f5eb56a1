"""Steps: where they come from, what belongs to them, and how long they took."""

import pytest
from collect.nsys_database import write_export
from graph.small_traces import call, kernel, note, of_kinds, one, op, rows, rows_named, training
from shared import shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.errors import GraphError, TraceError


def steps(trace, key="covered"):
    return [step[key] for step in trace.metadata["steps"]]


def left_out(trace):
    return [number for number, covered in enumerate(steps(trace)) if not covered]


def unmarked(count):
    return [each for each in training(count) if "ProfilerStep" not in str(each.get("name"))]


# -- how long ------------------------------------------------------------------------------------------


def test_a_step_is_measured_from_completion_to_completion(imported):
    #  host work of a step ends at 780, its last kernel at 670
    trace = imported(training(3))
    assert trace.metadata["step_source"] == "ProfilerStep# ranges"
    assert steps(trace, "name") == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert steps(trace, "completion_ns") == [780_000, 1_780_000, 2_780_000]
    assert steps(trace, "measured_ns") == [None, 1_000_000, 1_000_000]
    assert steps(trace) == [False, True, True]
    assert trace.metadata["steps"][0]["why_not"]


def test_device_work_counts_for_the_step_that_launched_it(imported):
    trace = imported(training(2), "launch late 900 1500 1900 stream=8")
    assert one(trace, "step", "late") == 0
    assert steps(trace, "completion_ns")[0] == 1_900_000
    assert steps(trace, "measured_ns")[1] == 0  # the second was done before the first one's work


def test_the_only_step_runs_from_its_start_unless_earlier_work_runs_in_it(imported):
    assert (steps(imported(training(1)), "measured_ns"), steps(imported(training(1)))) == ([780_000], [True])
    (step,) = imported(training(1), "kernel early 1 6 correlation=999").metadata["steps"]
    assert step["covered"] is False
    assert "before the window" in step["why_not"]


def test_launches_into_a_graph_that_is_captured_lost_no_work(imported):
    launches = [call("cudaLaunchKernel", 700 + 3 * n, 702 + 3 * n, 900 + n) for n in range(9)]
    (lost,) = imported(training(1), launches).metadata["steps"]
    assert "not recorded" in lost["why_not"]
    capture = "call cudaStreamBeginCapture 698 699\ncall cudaStreamEndCapture 730 731"
    assert steps(imported(training(1), capture, launches)) == [True]


@pytest.mark.parametrize(("count", "covered"), [(4, [False, True, True, False]), (2, [False, True])])
def test_a_step_within_which_the_recording_ends_is_left_out_beside_others(imported, count, covered):
    end = 1_000_000 * count - 400_000
    assert steps(imported([each for each in training(count) if each.get("start_ns", 0) < end])) == covered


def test_what_another_thread_launches_ahead_cuts_nothing_off(imported):
    # a loader's last copy is for a step beyond the recording, so no work of it is there
    for thread, covered in (("tid=77", True), ("", False)):
        last = f"call cudaLaunchKernel 3500 3900 correlation=990 {thread}"
        assert steps(imported(training(4), last))[-1] is covered


def test_threads_that_do_no_work_belong_to_no_step(imported):
    watchdog = rows("call cudaEventQuery 0 2 correlation=5000 tid=9", times=20, every=100, ids=1)
    trace = imported(training(2), watchdog)
    polls = rows_named(trace, "cudaEventQuery")
    assert {*trace.values("step", polls), *trace.values("phase", polls)} == {None}


# -- where they come from ------------------------------------------------------------------------------


def test_without_profiler_steps_the_optimizer_ends_them(imported):
    trace = imported(unmarked(3))
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    assert steps(trace, "end_ns") == [699_000, 1_699_000, 2_699_000]  # the loader at 1 us is the origin
    assert steps(trace, "measured_ns") == [None, 1_000_000, 1_000_000]
    # One that joins it every second time makes no steps of its own.
    joined = imported(unmarked(4), [note("Optimizer.step#B.step", at + 705, at + 725) for at in (1000, 3000)])
    assert joined.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    assert steps(joined, "end_ns") == [699_000, 1_724_000, 2_699_000, 3_724_000]


def test_an_optimizer_range_cut_off_by_the_end_lasts_to_the_end(imported):
    given = unmarked(3)
    last = [each for each in given if str(each["name"]).startswith("Optimizer.step")][-1]
    last["duration_ns"] = 0
    trace = imported(given)
    assert steps(trace, "completion_ns")[-1] == 2_779_000
    assert of_kinds(trace, "phase", "kernel")["multi_tensor_apply<float>"] == {"optimizer"}


def test_a_marker_pattern_chooses_any_ranges(imported):
    given = [*unmarked(3), *(note(f"iteration {n}", 1000 * n, 1000 * n + 990) for n in range(3))]
    trace = imported(given, step_marker=r"^iteration \d+$")
    assert steps(trace, "name") == ["iteration 0", "iteration 1", "iteration 2"]
    for said, options in (
        ("no annotation matches", {"step_marker": "epoch"}),
        ("not a regular expression", {"step_marker": "("}),
        ("only 'auto'", {"steps": "often"}),
    ):
        with pytest.raises(TraceError, match=said):
            imported(given, **options)


def loop(names, *, inner=None, outside_us=0):
    """Return steps 1,000 us apart: a range of 900 us with four kernels of 100 us, and one behind it."""
    found = []
    for step, name in enumerate(names):
        at = 1000 * step
        found.append(note(name, at, at + 900))
        for part in range(4):
            ids, begin = 10 * step + part, at + 10 + 200 * part
            found += [note(inner, begin, begin + 150)] if inner else []
            found += [
                op("aten::mm", begin + 10, begin + 60),
                call("cudaLaunchKernel", begin + 20, begin + 30, ids),
            ]
            found.append(kernel("gemm", begin + 40, begin + 140, ids))
        if outside_us:
            found += rows(f"launch other {at + 950} {at + 970} {at + 970 + outside_us} stream=8")
    return found


def names_of_steps(trace):
    return trace.metadata["step_source"].startswith("ranges such as "), steps(trace, "name")


@pytest.mark.parametrize(
    "names",
    [
        "step 7, step 8, step 9",
        "Warm-up Step 1, Warm-up Step 2, Warm-up Step 3",
        "[Trainer]TrainIter3, [Trainer]TrainIter4, [Trainer]TrainIter5",
        "train_step, train_step, train_step",
        "step[DECODE bs=32], step[EXTEND bs=1 tokens=512], step[DECODE bs=33]",
        "execute_context_1(128)_generation_0(0), execute_context_0(0)_generation_1(1)",
        "frame 3, frame 4, frame 5",
        "step[DECODE bs=32]",
    ],
)
def test_ranges_that_say_they_are_steps_are(imported, names):
    assert names_of_steps(imported(loop(names.split(", ")))) == (True, names.split(", "))


@pytest.mark.parametrize(
    "names",
    [
        "layer 0, layer 1, layer 2",
        "conv1, conv2, conv3",
        "micro batch 0, micro batch 1, micro batch 2",
        "optimizer step 1, optimizer step 2, optimizer step 3",
        "nn::BatchNorm step 1, nn::BatchNorm step 2, nn::BatchNorm step 3",
        "frame 3, frame 5, frame 4",  # no counter
        "frame 3, frame 4",  # too few to tell
        "tile 0 of 1, tile 1 of 2, tile 2 of 3",  # two numbers grow
    ],
)
def test_ranges_that_only_carry_a_number_are_no_steps(imported, names):
    assert not names_of_steps(imported(loop(names.split(", "))))[0]


def test_the_outer_ranges_of_each_thread_that_hold_most_of_the_work_are_the_steps(imported):
    names = ["step 0", "step 1", "step 2"]
    # A loader that counts faster launches nothing of its own.
    faster = [note(f"step {n}", 500 * n, 500 * n + 300, tid=2) for n in range(6)]
    for found in (loop(names, outside_us=390), [*loop(names), *faster]):
        assert names_of_steps(imported(found)) == (True, names)
    outer = [f"iteration {n}" for n in range(3)]
    assert names_of_steps(imported(loop(outer, inner="step 1"))) == (True, outer)
    assert not names_of_steps(imported(loop(names, outside_us=450)))[0]


# -- steps that are left out ---------------------------------------------------------------------------


def longer(extra, count=6):
    """Return steps of 1,000 us with an operator and a kernel; some hold more, and last as much longer."""
    found, at = [], 0
    for number in range(count):
        more = rows(extra.get(number, ""))
        found += rows(f"op aten::mm {at + 10} {at + 60}\nlaunch gemm {at + 20} {at + 40} {at + 940}")
        took = max((each["start_ns"] + each["duration_ns"] for each in more), default=0) // 1000
        found += [{**each, "start_ns": each["start_ns"] + 1000 * (at + 100)} for each in more]
        found += [op("aten::item", at + 900 + took, at + 990 + took)]
        found += [note(f"ProfilerStep#{number}", at, at + 999 + took)]
        at += 1000 + took
    return found


COMPILING = """
    note entire_frame_compile (dynamo_timed) 0 40000
    note _compile.compile_inner (dynamo_timed) 10 39990
    note backend_compile (dynamo_timed) 20 20000
"""


@pytest.mark.parametrize(
    ("extra", "why_not"),
    [
        (
            {1: "call cuModuleLoadData 0 5000", 2: "op aten::batch_norm 0 800"},
            {
                1: "5 ms of work that no later step repeats, most of it in cuModuleLoadData",
                2: "most of it in aten::batch_norm",
            },
        ),
        ({1: "note enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ 0 5000"}, {}),
        ({1: "op aten::dataloader_next 0 5000"}, {}),
        ({1: "call cudaStreamSynchronize 0 5000"}, {}),
        ({3: COMPILING}, {3: "the program compiled 1 function anew in it, 40 ms of 41 ms"}),
        ({3: "note cache (dynamo_timed) 0 200"}, {}),
        (dict.fromkeys(range(6), COMPILING), {}),
    ],
)
def test_first_iterations_and_new_code_are_left_out_and_waits_are_not(imported, extra, why_not):
    trace = imported(longer(extra))
    assert left_out(trace) == [0, *why_not]
    for number, said in why_not.items():
        assert trace.metadata["steps"][number]["why_not"].endswith(said)


def test_a_single_step_that_loads_modules_says_so(imported):
    def notes(first_us, again_us):
        found, at = [note("ProfilerStep#0", 0, 90_000)], 5
        for number, took in enumerate([first_us, 10, again_us, 10, 10, 10]):
            name = ("gemm", "relu")[number % 2]
            found.append(call("cudaLaunchKernel", at, at + took, number + 1))
            found.append(kernel(name, at + took, at + took + 20, number + 1))
            at += took + 20
        return imported(found).metadata["notes"]

    (said,) = notes(5000, 10)
    assert "holds start-up: 5 ms in first launches of 1 kernel, which load their modules" in said
    assert notes(10, 5000) == notes(100, 10) == []  # a launch that found the queue full; a short one


# -- recordings without a verdict ----------------------------------------------------------------------


def four_steps(*, launched=True, ran=True, ids=(0, 0)):
    """Return four steps of an operator that launches a kernel; `ids` are added to theirs."""
    found = []
    for step in range(4):
        at = 1000 * step
        found += [note(f"ProfilerStep#{step}", at, at + 1000), op("aten::mm", at + 10, at + 110)]
        found += [call("cudaLaunchKernel", at + 20, at + 30, step + 1 + ids[0])] if launched else []
        found += [kernel("sgemm", at + 40, at + 640, step + 1 + ids[1])] if ran else []
    return found


HOST = four_steps(launched=False, ran=False)
MEMORY = {"ph": "i", "name": "[memory]", "pid": 100, "tid": 1, "ts": 15, "s": "t"}
ON_GPU, ON_CPU = (
    {**MEMORY, "args": {"Addr": 64, "Bytes": 512, "Device Type": kind, "Device Id": kind - 1}}
    for kind in (1, 0)
)
NOT_BOUND = "whether the CPU or the device bounds it is not known"
NO_ID = [{**each, "correlation": 0} if "correlation" in each else each for each in four_steps()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (four_steps(ran=False), "4 calls launched work on a device, but no device work was recorded"),
        ([*HOST, ON_GPU], "memory of a device was allocated"),
        ([*HOST, op("aten::cudnn_convolution", 30, 35)], "operators ran that only a device has"),
        ([*HOST, op("nccl:all_to_all", 30, 35)], "operators ran that only a device has"),
        (four_steps(ids=(0, 100)), NOT_BOUND),
        (four_steps(launched=False), NOT_BOUND),
        (NO_ID, NOT_BOUND),  # all have the same id, which is none
    ],
)
def test_what_is_missing_is_no_work_of_the_cpu_alone(imported, given, said):
    with pytest.raises(GraphError, match=said):
        daydream.replay(imported(given))


def test_whole_recordings_have_a_verdict(imported):
    for given in (four_steps(), [*HOST, ON_CPU]):
        assert len(daydream.replay(imported(given)).steps) == 3
    some = [each for each in four_steps() if each["kind"] != "runtime" or each["correlation"] != 4]
    assert left_out(imported(some)) == [0, 3]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100_zoology_launches_without_kernels.json.gz", "268 calls launched work on a device"),
        ("symptoms/kineto_996_launches_without_kernels.json", "24 calls launched work on a device"),
        ("cuda_memory_events_without_device_rows.json.gz", "memory of a device was allocated"),
        ("symptoms/kernels_with_correlation_0.json", "bounds it is not known"),
        ("legacy_autograd_profiler_list.json.gz", "operators ran that only a device has"),
        ("a10g_empty_window.json.gz", "no operator, kernel or copy was recorded."),
        (
            "nsys_cuda13_no_kernels_collected.sqlite.gz",
            "No CUDA events collected. Does the process use CUDA?",
        ),
    ],
)
def test_the_shared_cases_have_no_verdict(name, said):
    with pytest.raises((GraphError, TraceError), match=said):
        daydream.whatif(shared_trace(f"cases/{name}"), "scale", on="cpu", factor=0.5)


def test_an_empty_recording_is_refused_with_what_the_file_says(tmp_path, imported):
    with pytest.raises(TraceError, match="no operator, kernel or copy was recorded"):
        imported("call cudaGetDeviceCount 1 3\nnote idle 0 9")
    said = [
        {"severity": 1, "text": "Profiling has started."},
        {"severity": 0, "text": "No CUDA events collected."},
    ]
    with pytest.raises(TraceError, match=r"was recorded\. No CUDA events collected\.$"):
        import_trace([write_export(tmp_path / "t.sqlite", "RUNTIME cuMemFree_v2 0 5", DIAGNOSTIC_EVENT=said)])
