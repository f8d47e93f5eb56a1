"""Tools: what each callback is given, ranges worked by hand, and mistakes of a user's own."""

import gzip
import json
import re
from collections import Counter

import numpy as np
import pytest
from graph.small_traces import PID
from graph.small_traces import trace as trace_of
from shared import TRACES, shared_trace

import daydream
from daydream.errors import DaydreamError
from daydream.tools.run import find_tool, tools
from daydream.tools.tool import ToolError
from daydream.trace.memory_events import MemoryEvents

MB = 1 << 20


@pytest.fixture
def trace():
    found = trace_of(
        """
        note block 0 .1
        op aten::linear .01 .04 layer=fc1 sequence=5
        call cudaLaunchKernel .02 .025 layer=fc1 correlation=1
        kernel gemm .05 .09 layer=fc1 correlation=1
        op aten::detach .06 .065 sequence=6
        op aten::relu .12 .13 layer=act sequence=6
        op ReluBackward0 .2 .22 tid=2 layer=act sequence=6 forward_thread=1
        op AddmmBackward0 .23 .26 tid=2 layer=fc1 sequence=5 forward_thread=1
        call cudaLaunchKernel .24 .245 tid=2 layer=fc1 correlation=2
        kernel gemm_grad .3 .36 layer=fc1 correlation=2
        call cudaStreamSynchronize .4 .47 correlation=3
        memcpy Memcpy DtoH (Device -> Pageable) .41 .46 correlation=3 bytes=1048576
        collective ncclDevKernel_AllReduce .5 .58
        """,
        steps=(0, 0.38, 0.6),
        source="by hand",
    )
    for step, number in zip(found.metadata["steps"], (3, 13), strict=True):
        step |= {"name": f"ProfilerStep#{number}", "covered": True}
    found.memory = MemoryEvents({
        "time_ns": np.array([15, 250, 405]), "bytes": np.array([MB, 2 * MB, -MB]),
        "device": np.zeros(3, np.int64), "address": np.array([100, 200, 100]),
        "pid": np.full(3, PID), "tid": np.array([1, 2, 1]),
    })  # fmt: skip
    return found


@daydream.tool
class Everything:
    """The names that each callback is given."""

    def __init__(self):
        self.seen = []
        self.columns = {}

    def on_kernel(self, event):
        self.seen.append(event.name)

    on_operator = on_call = on_copy = on_annotation = on_step = on_kernel

    def on_allocation(self, event):
        self.seen.append(f"{event.bytes} in {event.parent.name if event.parent else None}")

    def on_kernels(self, kernels):
        self.columns = {"ns": kernels["duration_ns"].tolist(), "names": kernels.values("name")}

    def result(self):
        return {"seen": self.seen, **self.columns}


def test_every_callback_is_given_its_events_by_time(trace):
    found = daydream.run_tool(Everything, trace)
    assert found["seen"] == [
        "block", "ProfilerStep#3", "aten::linear", f"{MB} in aten::linear", "cudaLaunchKernel", "gemm",
        "aten::detach", "aten::relu", "ReluBackward0", "AddmmBackward0", "cudaLaunchKernel",
        f"{2 * MB} in AddmmBackward0", "gemm_grad", "ProfilerStep#13", "cudaStreamSynchronize",
        f"{-MB} in cudaStreamSynchronize", "Memcpy DtoH (Device -> Pageable)", "ncclDevKernel_AllReduce",
    ]  # fmt: skip
    assert found["ns"] == [40, 60, 80]
    assert found["names"] == ["gemm", "gemm_grad", "ncclDevKernel_AllReduce"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        # relu has the number of the detach before it, and is not within: its backward pass is not, either.
        ("annotation:^bl", ["block", "ProfilerStep#3", "aten::linear", f"{MB} in aten::linear",
                            "cudaLaunchKernel", "gemm", "aten::detach", "AddmmBackward0",
                            "cudaLaunchKernel", f"{2 * MB} in AddmmBackward0", "gemm_grad"]),
        ("layer:act", ["ProfilerStep#3", "aten::relu", "ReluBackward0"]),
        ("step:13", ["ProfilerStep#13", "cudaStreamSynchronize", f"{-MB} in cudaStreamSynchronize",
                     "Memcpy DtoH (Device -> Pageable)", "ncclDevKernel_AllReduce"]),
        ("kernels:1-1", ["ProfilerStep#3", "gemm_grad"]),
    ],
)  # fmt: skip
def test_a_range_leaves_what_it_names_with_its_backward_pass(trace, text, seen):
    assert sorted(daydream.run_tool(Everything, trace, text)["seen"]) == sorted(seen)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blocks.1", "is no range; write layer:GLOB"),
        ("layer:fc9", "no layer matches 'fc9'; layers are act, fc1"),
        ("step:4", "no step '4'; steps are ProfilerStep#3, ProfilerStep#13"),
        ("step:", "no step ''"),
        ("annotation:(", "no regular expression"),
        ("annotation:gemm", "no annotation matches"),
        ("kernels:9-1", "write kernels:100-200"),
        ("kernels:3-4", "has 3 kernels"),
    ],
)
def test_a_range_that_names_nothing_says_so(trace, text, said):
    with pytest.raises(daydream.TraceError, match=re.escape(said)):
        daydream.run_tool(Everything, trace, text)


def test_tools_that_ship_on_a_trace_worked_by_hand(trace):
    found = {name: daydream.run_tool(name, trace) for name in tools()}
    assert found["kernel-frequency"] == {"kernels": [
        {"name": "gemm", "count": 1, "total_ns": 40}, {"name": "gemm_grad", "count": 1, "total_ns": 60},
        {"name": "ncclDevKernel_AllReduce", "count": 1, "total_ns": 80},
    ]}  # fmt: skip
    assert found["top-kernels"]["kernels"][1] == {
        "name": "gemm_grad", "operator": "AddmmBackward0", "total_ns": 60,
        "stack": "cudaLaunchKernel < AddmmBackward0",
    }  # fmt: skip
    assert found["launch-delays"] == {"streams": [{
        "rank": 0, "device": 0, "stream": 7, "kernels": 2, "median_ns": 45, "p95_ns": 58, "longest_ns": 60,
    }]}  # fmt: skip
    assert found["synchronization"] == {"calls": [
        {"name": "cudaStreamSynchronize", "operator": "", "count": 1, "total_ns": 70},
    ]}  # fmt: skip
    assert found["copies"] == {"copies": [
        {"name": "Memcpy DtoH (Device -> Pageable)", "below_bytes": 2 * MB, "count": 1, "bytes": MB,
         "total_ns": 50},
    ]}  # fmt: skip
    gaps = [
        (gap["until"].split(" ")[0], gap["start_ns"], gap["gap_ns"]) for gap in found["idle-gaps"]["gaps"]
    ]
    assert gaps == [("gemm_grad", 90, 210), ("Memcpy", 360, 50), ("ncclDevKernel_AllReduce", 460, 40)]
    curve = "rank 0, GPU 0 bytes"
    assert found["memory-curves"] == {"parts": [
        {"part": 1, curve: MB}, {"part": 13, curve: 3 * MB}, {"part": 20, curve: 2 * MB},
    ]}  # fmt: skip
    assert found["operator-footprint"] == {"operators": []}  # no shapes recorded


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def on_kernal(self, k): pass\n    def result(self): return {}", "Did you mean 'on_kernel'"),
        ("def result(self): return {}", "has no callback"),
        ("def on_kernel(self, k): pass", "has no result(self)"),
        ("def on_kernel(self, k): k.name.nothing\n    def result(self): return {}", "mine.py, line 5"),
        ("def on_kernel(self, k): pass\n    def result(self): return 3", "must return a mapping, not int"),
        ("def on_kernel(self, k): raise SystemExit\n    def result(self): return {}", "would end daydream"),
    ],
)
def test_a_mistake_in_ones_own_tool_is_one_line(trace, tmp_path, code, said):
    file = tmp_path / "mine.py"
    file.write_text(f"import daydream\n\n@daydream.tool\nclass Mine:\n    {code}\n")
    with pytest.raises(daydream.DaydreamError, match=re.escape(said)):
        daydream.run_tool(str(file), trace)


def test_what_is_no_tool_is_said():
    with pytest.raises(ToolError, match="Did you mean 'kernel-frequency'"):
        find_tool("kernel_frequencies")
    with pytest.raises(DaydreamError, match="no such file"):
        find_tool("./absent.py")


@pytest.mark.slow
def test_kernel_frequency_is_a_naive_count_of_every_public_trace():
    files = sorted((TRACES / "kineto").glob("*.json.gz")) if TRACES.exists() else []
    small = [file for file in files if file.stat().st_size < 1_500_000]
    if not small:
        pytest.skip("the public traces are not at hand")
    for file in small:
        with gzip.open(file) as packed:
            document = json.load(packed)
        events = document["traceEvents"] if isinstance(document, dict) else document
        naive = Counter(
            event["name"] for event in events
            if isinstance(event, dict)
            and str(event.get("cat")).lower() == "kernel"
            and event.get("ph") == "X"
        )  # fmt: skip
        found = daydream.run_tool("kernel-frequency", daydream.load(file))["kernels"]
        assert {each["name"]: each["count"] for each in found} == naive, file.name


def test_stacks_reach_the_source_line_of_a_public_trace():
    trace = daydream.load(shared_trace("kineto/h100_qwen_0.5b_inference.json.gz"))
    found = daydream.run_tool("top-kernels", trace)["kernels"]
    assert any("modeling_qwen2.py" in each["stack"] for each in found)
