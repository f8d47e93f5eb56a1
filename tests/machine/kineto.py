"""The Kineto trace that a profiler window over some steps of a machine's run would give.

The window runs from the start of the first step on the main thread to the end of the last
one there. CPU rows that start inside it are recorded, and device rows that start inside it,
also when their launch came before: those are the orphans at the head of a real trace whose
CPU runs ahead. A profiler that stops waits for the device, so device work launched in the
window is recorded to its end.
"""

import gzip
import json
from pathlib import Path

from .engine import Row

ORIGIN_NS = 1_000_000_000_000  # of the trace's clock; its microseconds keep three exact decimals as floats
BASE_NS = 1_700_000_000_000_000_000
PID, DEVICE = 4242, 0
THREADS = {"main": PID, "autograd": 4311, "loader": 4312, "watchdog": -61_440}  # real ones can be negative
# Of some programs only, and not named in the trace.
LATER = {"mixer": 4313, "normalizer": 4314, "reader": 4315, "worker": 4316}
IDS = {**THREADS, **LATER}
NO_STREAM = 4_294_967_295  # what a synchronization of the whole device has for its stream
CBID = {"cudaLaunchKernel": 211, "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51, "cudaEventRecord": 135,
        "cudaStreamWaitEvent": 147, "cudaEventQuery": 138, "cudaEventSynchronize": 137, "cudaFree": 22,
        "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165, "cudaGraphLaunch": 311}  # fmt: skip
GPU = {"id": DEVICE, "name": "Synthetic GPU (machine model)", "totalGlobalMem": 42_949_672_960,
       "computeMajor": 8, "computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32,
       "numSms": 108}  # fmt: skip
OWN_IDS = 1_000_000  # ids of the profiler's own rows, above those of the run


def kineto(run, first_step, last_step, *, sync_rows=False):
    """Return the trace document; `sync_rows` are the device's own records of synchronizations and waits."""
    host, device = window(run, first_step, last_step)
    begin = run.step_starts[first_step]
    end = max(run.step_ends[last_step], host[-1].end)
    host += _profiler_steps(run, first_step, last_step)
    calls = {row.correlation: row for row in host if row.correlation}

    writer = _Writer()
    events = [writer.host(row) for row in sorted(host, key=_outermost_first)]
    events += [writer.device(row) for row in device]
    if sync_rows:
        events += [writer.sync(run, row) for row in host if row.sync]
    events += writer.launch_flows(device, calls)
    events += writer.backward_flows(host)
    events += writer.metadata(run, begin, end)
    return {
        "schemaVersion": 1,
        "deviceProperties": [GPU],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "displayTimeUnit": "ms",
        "traceName": "synthetic: machine model",
        "traceEvents": events,
        "baseTimeNanoseconds": BASE_NS,
    }


def window(run, first_step, last_step):
    """Return the rows of the host and of the device that a profiler records of these steps."""
    begin, end = run.step_starts[first_step], run.step_ends[last_step]
    host = [row for row in run.host if begin <= row.start < end and row.lane in IDS]
    device = [row for row in run.device if begin <= row.start and run.launch_starts[row.correlation] < end]
    return [*host, _final_sync(run, end)], device


def write(path, document):
    """Write a document as .json or .json.gz; the same document gives the same bytes."""
    text = json.dumps(document, separators=(",", ":")).encode()
    target = Path(path)
    target.write_bytes(gzip.compress(text, 9, mtime=0) if target.suffix == ".gz" else text)
    return target


def _final_sync(run, start):
    done = max((row.end for row in run.device if run.launch_starts[row.correlation] < start), default=0)
    row = Row("cuda_runtime", "cudaDeviceSynchronize", "main", start, len(run.step_starts))
    row.end = max(start + run.costs.sync_entry, done) + run.costs.sync_return
    row.correlation = row.external = OWN_IDS
    row.sync = {"kind": "Context Sync", "stream": None}
    return row


def _profiler_steps(run, first, last):
    for step in range(first, last + 1):
        row = Row("user_annotation", f"ProfilerStep#{step}", "main", run.step_starts[step], step)
        row.end = run.step_ends[step]
        row.external = OWN_IDS + 1 + step
        yield row


def _outermost_first(row):
    return row.start, -row.end, not row.name.startswith("ProfilerStep#")


class _Writer:
    """Turns rows into events."""

    index = 0

    def time(self, ns):
        return ns / 1000

    def event(self, row, category, name, pid, tid, args):
        start, duration = self.time(ORIGIN_NS + row.start), self.time(row.end - row.start)
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
                "ts": start, "dur": duration, "args": args}  # fmt: skip

    def host(self, row):
        if row.category == "cuda_runtime":
            number = {"cbid": CBID[row.name]} if row.name in CBID else {}
            args = {"External id": row.external, **number, "correlation": row.correlation}
        else:
            args = {"External id": row.external, "Record function id": 0, **row.args, "Ev Idx": self.index}
            self.index += 1
        return self.event(row, row.category, row.name, PID, IDS[str(row.lane)], args)

    def device(self, row):
        args = {"External id": row.external, "device": DEVICE, "context": 1, "stream": row.lane,
                "correlation": row.correlation, **row.args}  # fmt: skip
        return self.event(row, row.category, row.name, DEVICE, int(row.lane), args)

    def sync(self, run, row):
        sync = row.sync or {}
        stream = sync["stream"]
        args = {"External id": row.external, "cuda_sync_kind": sync["kind"]}
        if "event" in sync:
            args |= {"wait_on_stream": sync["source"], "wait_on_cuda_event_record_corr_id": sync["record"],
                     "wait_on_cuda_event_id": 1 + sorted(run.events).index(sync["event"])}  # fmt: skip
            args["stream"] = -1 if stream is None else stream
        else:
            args["stream"] = NO_STREAM if stream is None else stream
        args |= {"correlation": row.correlation, "device": DEVICE, "context": 1}
        return self.event(row, "cuda_sync", sync["kind"], DEVICE, -1 if stream is None else stream, args)

    def launch_flows(self, device, calls):
        for row in device:
            call = calls.get(row.correlation)
            flow = {"cat": "ac2g", "name": "ac2g", "id": row.correlation}
            if call is not None:
                yield {"ph": "s", **flow, "pid": PID, "tid": IDS[str(call.lane)],
                       "ts": self.time(ORIGIN_NS + call.start)}  # fmt: skip
            yield {"ph": "f", **flow, "pid": DEVICE, "tid": row.lane, "ts": self.time(ORIGIN_NS + row.start),
                   "bp": "e"}  # fmt: skip

    def backward_flows(self, host):
        forward = {row.args["Sequence number"]: row for row in host
                   if row.lane == "main" and "Sequence number" in row.args}  # fmt: skip
        for row in host:
            start = forward.get(row.args.get("Sequence number"))
            if row.lane == "main" or start is None or row.name.startswith("autograd::engine"):
                continue
            flow = {"cat": "fwdbwd", "name": "fwdbwd", "id": row.args["Sequence number"]}
            yield {"ph": "s", **flow, "pid": PID, "tid": PID, "ts": self.time(ORIGIN_NS + start.start)}
            yield {"ph": "f", **flow, "pid": PID, "tid": IDS[str(row.lane)],
                   "ts": self.time(ORIGIN_NS + row.start), "bp": "e"}  # fmt: skip

    def metadata(self, run, begin, end):
        start = self.time(ORIGIN_NS + begin)
        for pid, tid, kind, label in [
            (PID, 0, "process_name", "python3"),
            (PID, 0, "process_labels", "CPU"),
            (DEVICE, 0, "process_labels", f"GPU {DEVICE}"),
            *((DEVICE, stream, "thread_name", f"stream {stream} ") for stream in sorted(run.streams)),
            *((PID, tid, "thread_name", f"thread {tid} ({name})") for name, tid in THREADS.items()),
        ]:
            key = "labels" if kind == "process_labels" else "name"
            yield {"ph": "M", "name": kind, "ts": start, "pid": pid, "tid": tid, "args": {key: label}}
        yield {"ph": "X", "cat": "Trace", "ts": start, "dur": self.time(end - begin), "pid": "Spans",
               "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)",
               "args": {"Op count": 0}}  # fmt: skip
        yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",
               "ts": self.time(ORIGIN_NS + end)}  # fmt: skip
