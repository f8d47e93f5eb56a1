"""Whatever a file holds, importing it ends in a trace or in a `DaydreamError`, never in another exception."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from fuzz.damage import bytes_changed, tree_changed
from kineto_text import document, note, op, row, training

from daydream.collect.importers import import_trace
from daydream.collect.importers.kineto.events import ARGUMENTS, Event
from daydream.errors import DaydreamError
from daydream.trace.schema import FIELDS

SHARED = Path(__file__).parents[3] / "shared" / "traces"
SMALL_SHARED = (
    "kineto/a100_event_sync.json.gz",
    "kineto/a100_event_sync_multi_stream.json.gz",
    "kineto/mi250_toy_training.json.gz",
    "kineto/mi300x_torch_compile_triton.json.gz",
    "kineto/vllm_decode_graph_replay.json.gz",
    "kineto/gpu_user_annotation.json.gz",
    "kineto/v100_dlrm_4_of_8_ranks/rank0.json.gz",
    "odd/triton_example.json.gz",
    "odd/backward_thread.json.gz",
    "odd/stream_wait_resolved.json.gz",
    "odd/pytorch_execution_trace_not_kineto.json.gz",
)
LARGE_SHARED = (
    "kineto/h100_bert_small_inference.json.gz",
    "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz",
    "kineto/a100_resnet_ddp_rank0of2.json.gz",
    "odd/cpu_only.json.gz",
)


def break_gzip(text, chance):
    return bytes_changed(gzip.compress(text, 1), chance)


def events_of(document):
    return document if isinstance(document, list) else document.setdefault("traceEvents", [])


def changed_tree(text, chance):
    """Replace or leave out values wherever they stand, or one key everywhere."""
    document = json.loads(text)
    if chance.random() < 0.3:
        key = chance.choice([*Event.__struct_fields__, *ARGUMENTS.values()])
        for event in events_of(document):
            for fields in (event, event.get("args") or {}):
                fields.pop(key, None)
    return json.dumps(tree_changed(document, chance)).encode("utf-8", "surrogatepass")


def repeated_and_reordered(text, chance):
    events = events_of(json.loads(text))
    mixed = [*events, *(chance.choice(events) for _ in range(len(events) // 3))]
    chance.shuffle(mixed)
    return json.dumps(mixed if chance.random() < 0.5 else {"traceEvents": mixed, "x": [{"a": 1}]}).encode()


def shifted(text, chance):
    document = json.loads(text)
    for event in events_of(document):
        if isinstance(event.get("ts"), (int, float)) and chance.random() < 0.05:
            event["ts"] += chance.choice((-1e15, -1e4, -1, 0.5, 1, 1e4, 1e15, 9e15))
            if isinstance(event.get("dur"), (int, float)):
                event["dur"] *= chance.choice((-1, 0, 0.001, 10, 1e6))
    return json.dumps(document).encode()


MUTATIONS = (bytes_changed, break_gzip, changed_tree, repeated_and_reordered, shifted)


def generated():
    events = training()
    events += [
        row("python_function", "nn.Module: Linear_0", 99, 60),
        row("kernel", "ncclDevKernel_AllReduce_Sum_f32", 400, 50, pid=0, tid=9, stream=9, correlation=9999),
        op("record_param_comms", 2760, 9, Collective_name="allreduce", In_msg_nelems=100, dtype="Float"),
        note("## forward ##", 100, 90),
    ]
    return json.dumps(document(events, distributedInfo={"rank": 0, "world_size": 2})).encode()


def check(trace):
    """Check what every trace promises, whatever the file was like."""
    rows = len(trace)
    assert rows > 0
    start = np.asarray(trace["start_ns"], np.int64)
    duration = np.asarray(trace["duration_ns"], np.int64)
    assert (duration >= 0).all()
    assert start.min() >= 0
    assert all(name in FIELDS for name in trace.columns)
    for name in trace.texts:
        assert trace[name].max() < len(trace.text(name))
    parent = np.asarray(trace["parent"])
    assert parent.max() < rows
    assert (np.asarray(trace["step"]) < len(trace.metadata["steps"])).all()
    host = trace.is_kind("operator", "annotation", "runtime") & (parent >= 0)
    inner, outer = np.flatnonzero(host), parent[host]
    assert (start[inner] >= start[outer]).all()
    assert (start[inner] + duration[inner] <= start[outer] + duration[outer]).all()
    assert (trace["tid"][inner] == trace["tid"][outer]).all()
    json.dumps(trace.metadata)
    trace.to_arrow()


def outcome(path):
    """Import a file and check what came of it: ("trace" or "error" or "crash", message)."""
    try:
        trace = import_trace([path])
    except DaydreamError as error:
        return "error", str(error)
    except Exception as error:  # noqa: BLE001 - any other exception is what is looked for
        return "crash", f"{type(error).__name__}: {error}"
    check(trace)
    return "trace", ""


def fuzz(name, text, cases, folder):
    """Import `cases` mutations of a file, the same ones every time; return how many ended in what."""
    chance = random.Random(name)
    outcomes = {"trace": 0, "error": 0}
    for case in range(cases):
        mutation = MUTATIONS[case % len(MUTATIONS)]
        try:
            mutated = mutation(text, chance)
        except (ValueError, OverflowError):
            continue
        path = folder / "mutated.json"
        path.write_bytes(mutated)
        what, message = outcome(path)
        assert what != "crash", f"{name}, case {case}, {mutation.__name__}: {message}; see {path}"
        assert "\n" not in message
        outcomes[what] += 1
    return outcomes


def shared(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip("the shared traces are not here")
    return gzip.decompress(path.read_bytes())


MANY = pytest.param(12, marks=pytest.mark.slow)


@pytest.mark.parametrize("times", [1, MANY])
def test_no_mutation_of_a_small_trace_breaks_the_importer(times, tmp_path):
    outcomes = fuzz(f"generated {times}", generated(), 320 * times, tmp_path)
    assert outcomes["trace"] > 100 * times
    assert outcomes["error"] > 50 * times


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize("name", SMALL_SHARED)
def test_no_mutation_of_a_real_trace_breaks_the_importer(name, times, tmp_path):
    text = shared(name)
    cases = 18 if len(text) > 100_000 else 45
    assert fuzz(f"{name} {times}", text, cases * times, tmp_path)["error"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_SHARED)
def test_no_mutation_of_a_large_trace_breaks_the_importer(name, tmp_path):
    assert fuzz(name, shared(name), 27, tmp_path)["error"] > 0
