"""Tools: what each callback is given, ranges worked by hand, and mistakes of a user's own."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import TRACES, shared_trace

import daydream
from daydream.errors import DaydreamError
from daydream.tools.run import find_tool, tools
from daydream.tools.tool import ToolError
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import FIELDS

MB = 1 << 20
# kind, name, start, duration, parent, layer, step, sequence, forward thread
ROWS = [
    ("annotation", "block", 0, 100, -1, None, 0, -1, -1),
    ("operator", "aten::linear", 10, 30, 0, "fc1", 0, 5, -1),
    ("runtime", "cudaLaunchKernel", 20, 5, 1, "fc1", 0, -1, -1),
    ("kernel", "gemm", 50, 40, 2, "fc1", 0, -1, -1),
    ("operator", "aten::detach", 60, 5, 0, None, 0, 6, -1),
    ("operator", "aten::relu", 120, 10, -1, "act", 0, 6, -1),
    ("operator", "ReluBackward0", 200, 20, -1, "act", 0, 6, 1),
    ("operator", "AddmmBackward0", 230, 30, -1, "fc1", 0, 5, 1),
    ("runtime", "cudaLaunchKernel", 240, 5, 7, "fc1", 0, -1, -1),
    ("kernel", "gemm_grad", 300, 60, 8, "fc1", 0, -1, -1),
    ("runtime", "cudaStreamSynchronize", 400, 70, -1, None, 1, -1, -1),
    ("memcpy", "Memcpy DtoH (Device -> Pageable)", 410, 50, 10, None, 1, -1, -1),
    ("collective", "ncclDevKernel_AllReduce", 500, 80, -1, None, 1, -1, -1),
]
NAMES = ("kind", "name", "start_ns", "duration_ns", "parent", "layer", "step", "sequence", "forward_thread")
BACKWARD = (6, 7, 8)  # rows of autograd's thread
ON_DEVICE = {"kernel", "memcpy", "collective"}


@pytest.fixture
def trace() -> daydream.Trace:
    columns: dict[str, np.ndarray] = {}
    texts: dict[str, list[str]] = {}
    for name, values in zip(NAMES, zip(*ROWS, strict=True), strict=True):
        if FIELDS[name].type == "text":
            texts[name] = list(dict.fromkeys(value for value in values if value is not None))
            columns[name] = np.array([-1 if value is None else texts[name].index(value) for value in values])
        else:
            columns[name] = np.array(values)
    device = np.array([row[0] in ON_DEVICE for row in ROWS])
    columns |= {
        "rank": np.zeros(len(ROWS), np.int64),
        "tid": np.where(device, FIELDS["tid"].null, np.where(np.isin(np.arange(len(ROWS)), BACKWARD), 2, 1)),
        "pid": np.where(device, FIELDS["pid"].null, 1),
        "device": np.where(device, 0, -1),
        "stream": np.where(device, 7, -1),
        "bytes": np.array([MB if row[0] == "memcpy" else -1 for row in ROWS]),
    }
    steps = [
        {"name": "ProfilerStep#3", "rank": 0, "start_ns": 0, "end_ns": 380, "covered": True, "why_not": None},
        {
            "name": "ProfilerStep#13",
            "rank": 0,
            "start_ns": 380,
            "end_ns": 600,
            "covered": True,
            "why_not": None,
        },
    ]
    memory = MemoryEvents({
        "time_ns": np.array([15, 250, 405]), "bytes": np.array([MB, 2 * MB, -MB]),
        "device": np.zeros(3, np.int64),
        "pid": np.ones(3, np.int64), "tid": np.array([1, 2, 1]), "address": np.array([100, 200, 100]),
    })  # fmt: skip
    return daydream.Trace(columns, texts, {"steps": steps, "source": "by hand"}, memory)


@daydream.tool
class Everything:
    """The names that each callback is given."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.columns: dict[str, Any] = {}

    def on_kernel(self, event: Any) -> None:
        self.seen.append(event.name)

    on_operator = on_call = on_copy = on_annotation = on_step = on_kernel

    def on_allocation(self, event: Any) -> None:
        self.seen.append(f"{event.bytes} in {event.parent.name if event.parent else None}")

    def on_kernels(self, kernels: Any) -> None:
        self.columns = {"ns": kernels["duration_ns"].tolist(), "names": kernels.values("name")}

    def result(self) -> dict[str, Any]:
        return {"seen": self.seen, **self.columns}


def test_every_callback_is_given_its_events_by_time(trace: daydream.Trace) -> None:
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
def test_a_range_leaves_what_it_names_with_its_backward_pass(
    trace: daydream.Trace, text: str, seen: list[str]
) -> None:
    assert sorted(daydream.run_tool(Everything, trace, text)["seen"]) == sorted(seen)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blocks.1", "is no range; write layer:GLOB"),
        ("layer:fc9", "no layer matches 'fc9'; layers are fc1, act"),
        ("step:4", "no step '4'; steps are ProfilerStep#3, ProfilerStep#13"),
        ("step:", "no step ''"),
        ("annotation:(", "no regular expression"),
        ("annotation:gemm", "no annotation matches"),
        ("kernels:9-1", "write kernels:100-200"),
        ("kernels:3-4", "has 3 kernels"),
    ],
)
def test_a_range_that_names_nothing_says_so(trace: daydream.Trace, text: str, said: str) -> None:
    with pytest.raises(daydream.TraceError, match=re.escape(said)):
        daydream.run_tool(Everything, trace, text)


def test_tools_that_ship_on_a_trace_worked_by_hand(trace: daydream.Trace) -> None:
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
def test_a_mistake_in_ones_own_tool_is_one_line(
    trace: daydream.Trace, tmp_path: Path, code: str, said: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import daydream\n\n@daydream.tool\nclass Mine:\n    {code}\n")
    with pytest.raises(daydream.DaydreamError, match=re.escape(said)):
        daydream.run_tool(str(file), trace)


def test_what_is_no_tool_is_said() -> None:
    with pytest.raises(ToolError, match="Did you mean 'kernel-frequency'"):
        find_tool("kernel_frequencies")
    with pytest.raises(DaydreamError, match="no such file"):
        find_tool("./absent.py")


@pytest.mark.slow
def test_kernel_frequency_is_a_naive_count_of_every_public_trace() -> None:
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


def test_stacks_reach_the_source_line_of_a_public_trace() -> None:
    trace = daydream.load(shared_trace("kineto/h100_qwen_0.5b_inference.json.gz"))
    found = daydream.run_tool("top-kernels", trace)["kernels"]
    assert any("modeling_qwen2.py" in each["stack"] for each in found)
