"""Timeline files of the tests: read, and held against the Trace Event Format strictly."""

import gzip
import json
from bisect import bisect_right
from collections import defaultdict

NS = 1000  # a microsecond
KEYS = {
    "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
    "M": {"pid", "tid", "name", "args"},
    "C": {"pid", "ts", "name", "args"},
    "s": {"pid", "tid", "ts", "id", "name", "cat"},
    "f": {"pid", "tid", "ts", "id", "name", "cat", "bp"},
}


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def slices(document, process):
    pids = {
        e["pid"]
        for e in document["traceEvents"]
        if e["name"] == "process_name" and e["args"]["name"].startswith(process)
    }
    (pid,) = pids
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def threads(document):
    return {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }


def problems(document):
    """Return what breaks the format: missing keys, bad times, slices that neither nest nor follow."""
    found = []
    lanes = defaultdict(list)
    named = threads(document)
    for event in document["traceEvents"]:
        if event["ph"] not in KEYS or set(event) != KEYS[event["ph"]] | {"ph"}:
            found.append(f"{event} has other keys than its kind")
        elif event["ph"] == "X":
            if not (type(event["ts"]) in (int, float) and event["ts"] >= 0 and event["dur"] >= 0):
                found.append(f"bad times in {event}")
            if (event["pid"], event["tid"]) not in named:
                found.append(f"no name for the thread of {event}")
            lanes[event["pid"], event["tid"]].append(
                (round(event["ts"] * NS), round(event["dur"] * NS), event["name"])
            )
        elif event["ph"] == "C" and not (event["ts"] >= 0 and event["args"]["value"] >= 0):
            found.append(f"{event} is below zero")
    for lane, events in lanes.items():
        open_ends = []
        for start, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and start + duration > open_ends[-1]:
                found.append(f"{name!r} overlaps on {named[lane]}")
            open_ends.append(start + duration)
    return found + _broken_arrows(document, lanes)


def _broken_arrows(document, lanes):
    """Return the arrows that have one end, go back in time, or end where there is no slice."""
    ends = defaultdict(dict)
    found = []
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            if event["ph"] in ends[event["id"]]:
                found.append(f"{event} comes twice")
            ends[event["id"]][event["ph"]] = event
    starts = {lane: sorted((start, start + duration) for start, duration, _ in events)
              for lane, events in lanes.items()}  # fmt: skip
    for pair in ends.values():
        if set(pair) != {"s", "f"} or any(pair["s"][key] != pair["f"][key] for key in ("pid", "name", "cat")):
            found.append(f"{pair} is no pair")
        elif pair["s"]["ts"] > pair["f"]["ts"]:
            found.append(f"{pair} goes back in time")
        for event in pair.values():
            at, slices_ = round(event["ts"] * NS), starts.get((event["pid"], event["tid"]), [])
            place = bisect_right(slices_, (at, 1 << 62))
            # Slices nest: of those that have begun, one of the last few is still open, if any is.
            if not any(end > at for _, end in slices_[max(place - 400, 0) : place]):
                found.append(f"{event} is in no slice")
    return found
