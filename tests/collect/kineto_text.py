"""Small Kineto documents for the tests, written by hand: times in microseconds, as torch writes them."""

import gzip
import json

import numpy as np

MAIN, ENGINE = 100, 101


def row(cat, name, ts, dur, *, pid=100, tid=MAIN, **args):
    """One complete event; `args` with underscores for blanks (`External_id`)."""
    given = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": given}


def op(name, ts, dur, **args):
    return row("cpu_op", name, ts, dur, **args)


def note(name, ts, dur, **args):
    return row("user_annotation", name, ts, dur, **args)


def call(name, ts, dur, correlation, **args):
    return row("cuda_runtime", name, ts, dur, correlation=correlation, **args)


def kernel(name, ts, dur, correlation, *, stream=7, **args):
    return row(
        "kernel", name, ts, dur, pid=0, tid=stream, device=0, stream=stream, correlation=correlation, **args
    )


def training(steps=3, *, step_us=1000):
    """A training loop with a loader, a forward pass, an autograd thread and an optimizer.

    main    |load|linear|relu|mse_loss|.............|Optimizer.step|
    engine                            |node|node|accumulate|
    stream        |gemm|relu|loss|     |dgemm|...          |add|
    """
    events = []
    for step in range(steps):
        at, ids, seq = step * step_us, 100 * step, 10 * step
        events += [
            note(f"ProfilerStep#{step}", at, step_us - 1),
            note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, 50),
            op("aten::linear", at + 100, 50, External_id=ids + 1, Sequence_number=seq + 1, Fwd_thread_id=0),
            op("aten::addmm", at + 105, 40, External_id=ids + 2, Sequence_number=seq + 1, Fwd_thread_id=0,
               Input_Dims=[[64], [8, 32], [32, 64]], Input_type=["float", "float", "float"]),
            call("cudaLaunchKernel", at + 110, 10, ids + 1, External_id=ids + 2),
            kernel("ampere_sgemm_32x32_tn", at + 130, 40, ids + 1, External_id=ids + 2, grid=[8, 1, 1],
                   block=[128, 1, 1]),
            op("aten::mse_loss", at + 200, 50, External_id=ids + 3, Sequence_number=seq + 2, Fwd_thread_id=0),
            call("cudaLaunchKernel", at + 210, 10, ids + 2, External_id=ids + 3),
            kernel("reduce_kernel<float>", at + 240, 20, ids + 2, External_id=ids + 3),
            op("autograd::engine::evaluate_function: MseLossBackward0", at + 300, 60, tid=ENGINE,
               External_id=ids + 4, Sequence_number=seq + 2, Fwd_thread_id=1),
            op("MseLossBackward0", at + 305, 50, tid=ENGINE,
               External_id=ids + 5, Sequence_number=seq + 2, Fwd_thread_id=1),
            call("cudaLaunchKernel", at + 310, 10, ids + 3, tid=ENGINE, External_id=ids + 5),
            kernel("mse_backward<float>", at + 330, 20, ids + 3, External_id=ids + 5),
            op("autograd::engine::evaluate_function: AddmmBackward0", at + 400, 60, tid=ENGINE,
               External_id=ids + 6, Sequence_number=seq + 1, Fwd_thread_id=1),
            call("cudaLaunchKernel", at + 410, 10, ids + 4, tid=ENGINE, External_id=ids + 6),
            kernel("ampere_sgemm_32x32_nt", at + 430, 60, ids + 4, External_id=ids + 6),
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 470, 20,
               tid=ENGINE, External_id=ids + 7),
            note("Optimizer.step#SGD.step", at + 600, 100, External_id=ids + 8),
            op("aten::add_", at + 610, 40, External_id=ids + 9),
            call("cudaLaunchKernel", at + 620, 10, ids + 5, External_id=ids + 9),
            kernel("multi_tensor_apply<float>", at + 640, 30 + step, ids + 5, External_id=ids + 9),
            op("aten::item", at + 750, 30, External_id=ids + 10),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": ids + 5, "pid": 100, "tid": 100, "ts": at + 620},
            {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": ids + 5, "pid": 0, "tid": 7, "ts": at + 640},
        ]  # fmt: skip
    events += [
        {
            "name": "process_name",
            "ph": "M",
            "ts": 0,
            "pid": 100,
            "tid": 0,
            "args": {"name": "python secret-job"},
        },
        {
            "ph": "X",
            "cat": "Trace",
            "ts": 0,
            "dur": 9,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "span",
        },
        {"name": "Iteration Start", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 0},
    ]
    return events


def document(events, **header):
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 10}],
        **header,
        "traceEvents": events,
    }


def write(path, content):
    """Write JSON (or text, or bytes) to a file, gzipped if its name says so."""
    data = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def rows_named(trace, name):
    return [int(line) for line in np.flatnonzero(trace["name"] == trace.code("name", name))]


def phases(trace, *kinds):
    """Return the phases that rows of each name have, for some kinds of rows."""
    found = {}
    lines = np.flatnonzero(trace.is_kind(*kinds))
    for name, phase in zip(trace.values("name", lines), trace.values("phase", lines), strict=True):
        found.setdefault(name, set()).add(phase)
    return found
