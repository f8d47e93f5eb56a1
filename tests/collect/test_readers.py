"""Processes that read a Kineto file side by side: same recording, same errors, nothing left behind."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto_text import document, op, training, write

from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording
from daydream.collect.importers.kineto import blocks, readers
from daydream.collect.importers.kineto.reader import read_kineto
from daydream.collect.importers.kineto.readers import Readers
from daydream.errors import TraceError

BLOCK = 4096  # so that a small file has many of them
STEPS = 50


def several(**how: Any) -> Readers:
    return Readers(2, least_bytes=0, **how)


def events_of_all_kinds() -> list[dict[str, Any]]:
    events = training(STEPS)
    frame = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 1, "dur": 3}
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "s": "t"}
    for number in range(0, len(events), 40):
        at = events[number].get("ts", 0)
        events.append({**frame, "ts": at, "name": f"my/train.py({number}): step"})
        events.append({**frame, "ts": at, "name": f"nn.Module: Linear_{number % 7}"})
        args = {"Addr": 64 + number, "Bytes": 8 * number, "Device Type": 0, "Device Id": -1}
        events.append({**memory, "ts": at, "args": {**args, "Total Allocated": "17"}})
        events.append({**op("odd", at, 1), "cat": f"strange{number % 3}"})
        events.append({**op("odd", at, 1), "dur": "never"})
    return events


def saved(recording: Recording, folder: Path) -> bytes:
    derive(recording).save(folder / "t.parquet", force=True)
    return (folder / "t.parquet").read_bytes()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each file was read side by side."""
    found: list[bool] = []
    rows: Callable[..., Any] = Readers.rows

    def watched(self: Readers, reader: Any, progress: Any = None) -> Any:
        answer = rows(self, reader, progress)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(Readers, "rows", watched)
    return found


@pytest.mark.parametrize("form", ["object", "packed", "pretty", "list", "marked", "header last", "digits"])
def test_the_trace_is_the_same_byte_for_byte(tmp_path: Path, used: list[bool], form: str) -> None:
    events = events_of_all_kinds()
    if form == "digits":  # microseconds since 1970 with nanoseconds: more digits than a float has
        for event in events:
            event["ts"] = 1_700_000_000_000_000.125 + event.get("ts", 0)
    whole = json.dumps(document(events))
    contents: dict[str, Any] = {
        "pretty": json.dumps(document(events), indent=1),
        "list": events,
        "marked": b"\xef\xbb\xbf" + whole.encode(),
        "header last": {"traceEvents": events, "distributedInfo": {"rank": 3}},
    }
    path = write(tmp_path / ("t.json.gz" if form == "packed" else "t.json"), contents.get(form, whole))
    alone = read_kineto(path, block_bytes=BLOCK)
    shares: list[float] = []
    with several() as beside:
        found = read_kineto(path, block_bytes=BLOCK, readers=beside, progress=shares.append)
    assert used == ([True] if form != "digits" else used)
    assert used[-1]
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert found.metadata == alone.metadata
    assert (alone.memory is None) == (found.memory is None)
    assert saved(found, tmp_path) == saved(alone, tmp_path)


def test_files_of_ranks_are_read_side_by_side(tmp_path: Path, used: list[bool]) -> None:
    paths = [write(tmp_path / f"{rank}.json", document(training(5 + rank))) for rank in range(5)]
    sizes = [path.stat().st_size for path in paths]
    with Readers(2, least_bytes=max(sizes) + 1) as beside:
        beside.expect(paths)
        found = [read_kineto(path, readers=beside) for path in paths]
    assert used == [True] * 5
    for path, recording in zip(paths, found, strict=True):
        assert saved(recording, tmp_path) == saved(read_kineto(path), tmp_path)


def test_small_files_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    path = write(tmp_path / "t.json", document(training(5)))
    with Readers(8) as beside:
        beside.expect([path, path])
        assert len(read_kineto(path, readers=beside).columns["start_ns"])


@pytest.mark.parametrize("damage", ["cut off", "not JSON", "cut gzip", "no events", "too much"])
def test_damage_is_told_in_the_same_words(tmp_path: Path, damage: str) -> None:
    text = json.dumps(document(events_of_all_kinds())).encode()
    middle = text.index(b"}, {", len(text) // 2) + 2
    packed = gzip.compress(text)
    content = {
        "cut off": text[:middle],
        "not JSON": text[:middle] + b"oops" + text[middle:],
        "cut gzip": packed[: len(packed) // 2],
        "no events": text.replace(b"traceEvents", b"otherEvents"),
        "too much": packed,
    }[damage]
    path = tmp_path / "t.json"
    path.write_bytes(content)
    most = 100_000 if damage == "too much" else None
    with pytest.raises(TraceError) as alone:
        read_kineto(path, block_bytes=BLOCK, max_unpacked=most)
    with several() as beside, pytest.raises(TraceError) as found:
        read_kineto(path, block_bytes=BLOCK, max_unpacked=most, readers=beside)
    assert str(found.value) == str(alone.value)


def test_a_boundary_inside_an_event_is_no_boundary(tmp_path: Path) -> None:
    events = [
        {
            **op("aten::add", 10 * number, 5),
            "args": {"list": [{"a": k} for k in range(40)], "External id": number},
        }
        for number in range(300)
    ]
    path = write(tmp_path / "t.json", document(events))
    with several() as beside:
        found = read_kineto(path, block_bytes=BLOCK, readers=beside)
    assert len(found) == 300
    assert saved(found, tmp_path) == saved(read_kineto(path, block_bytes=BLOCK), tmp_path)


def test_a_process_that_dies_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: list[bool]
) -> None:
    monkeypatch.setattr(readers, "START", "import os; os.read(0, 8); os.kill(os.getpid(), 9)")
    path = write(tmp_path / "t.json", document(events_of_all_kinds()))
    with several() as beside:
        found = read_kineto(path, block_bytes=BLOCK, readers=beside)
    assert used == [False]
    assert saved(found, tmp_path) == saved(read_kineto(path, block_bytes=BLOCK), tmp_path)


def test_parts_hold_every_byte_between_the_first_event_and_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document(events_of_all_kinds()))
    text = path.read_bytes()
    with path.open("rb") as file:
        found = list(blocks.parts_of_plain(path, file, len(text), BLOCK))
    assert len(found) > 3
    assert found[-1].prefix + b"".join(part.read()[: -part.left or None] for part in found) == text


SCRIPT = """
import sys, time
from daydream.collect.importers.kineto import readers
readers.Rows.join = lambda *_: (print("begun", flush=True), time.sleep(60))
from daydream.collect.importers.kineto.reader import read_kineto
with readers.Readers(2, least_bytes=0) as beside:
    read_kineto(sys.argv[1], block_bytes=4096, readers=beside)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_leaves_no_process_and_no_file(tmp_path: Path, by: signal.Signals) -> None:
    path = write(tmp_path / "t.json", document(events_of_all_kinds()))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    started = [
        int(pid.name) for pid in Path("/proc").iterdir() if pid.name.isdigit() and _parent(pid) == process.pid
    ]
    assert started
    process.send_signal(by)
    process.wait(20)
    process.stdout.close()
    until = time.monotonic() + 20
    while any(_runs(pid) for pid in started) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in started)
    assert list(tmp_path.iterdir()) == [path]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
