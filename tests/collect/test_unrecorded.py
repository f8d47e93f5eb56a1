"""Device work that was launched but not recorded, or recorded without what launched it; and empty files."""

import pytest
from kineto_text import call, document, kernel, note, op, row, write
from nsys_database import call as nsys_call
from nsys_database import write_export
from shared import shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.errors import GraphError, TraceError


def steps(*, launched=True, ran=True, ids=(0, 0)):
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
        tmp_path, steps(ran=False)
    )
    assert len(daydream.replay(daydream.load(write(tmp_path / "t.json", document(steps())))).steps) == 3


def test_memory_of_a_device_without_its_work_is_no_work_of_the_cpu_alone(tmp_path):
    alone = steps(launched=False, ran=False)
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
        steps(ids=(0, 100)),  # no id is of a call
        steps(launched=False),
        [  # all have the same id, which is none
            {**event, "args": {**event["args"], "correlation": 0}}
            if "correlation" in event["args"]
            else event
            for event in steps()
        ],
    ],
)
def test_kernels_that_no_call_launched_bound_no_step(tmp_path, events):
    assert "whether the CPU or the device bounds it is not known" in refused(tmp_path, events)


def test_steps_whose_launches_are_known_count_beside_others(tmp_path):
    events = [event for event in steps() if event["args"].get("correlation") != 4 or event["cat"] == "kernel"]
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
