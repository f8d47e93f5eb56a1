"""Memory events of a trace: their rows, their pairs and what each tensor is."""

import base64
import io
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from recordings import PARAMETER, SGD, Recording, training_step

import daydream
from daydream.errors import TraceError
from daydream.memory.allocations import AFTER, BEFORE, EVENT, KINDS, STEP
from daydream.memory.lifetimes import allocations, paired
from daydream.trace.memory_events import COLUMNS, HOST, MemoryEvents
from daydream.trace.trace import Trace


def memory_row(at, nbytes, address, total=None, **more):
    """Return an allocation of device 0, or a free (bytes below 0); `more` replaces arguments."""
    args = {"Bytes": nbytes, "Addr": address, "Device Id": 0, "Device Type": 1}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 1 << 21}
    given = {name.replace("_", " "): value for name, value in more.items()}
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": {**args, **given}}


def operator(name, at, duration):
    """Return an operator on the thread of the memory rows."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": duration}


def written(folder, rows, **document):
    """Write an operator from 0 to 100 us and these rows."""
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [operator("aten::mm", 0, 100), *rows], **document}))
    return path


# Memory events of a trace: their rows, their pairs and what each tensor is


# Memory events that are imported, saved and doubted: files by hand, and what is said of odd ones


LEFT_OUT = "of memory told no time, device or number of bytes and"
BOTH = [memory_row(10, 1024, 4096, 5120), memory_row(20, -1024, 4096, 4096)]


def notes_of(path):
    return list(daydream.load(path).metadata["notes"])


def held_of(path):
    trace = daydream.load(path)
    return paired(trace, trace.memory)


# Import -------------------------------------------------------------------------------------------


def test_two_ranks_keep_their_own_events(tmp_path):
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        rows = [memory_row(10 + rank, 512 * (rank + 1), 4096)]
        written(folder, rows, distributedInfo={"rank": rank, "world_size": 2})

    trace = daydream.load(tmp_path / "0" / "t.json", tmp_path / "1" / "t.json")

    assert trace.memory["rank"].tolist() == [0, 1]
    assert trace.memory["bytes"].tolist() == [512, 1024]
    held = paired(trace, trace.memory)
    assert [held.peak(rank, 0)[0] for rank in (0, 1)] == [512, 1024]


def test_totals_tell_of_allocations_that_were_not_recorded(tmp_path):
    sizes = [512, 2048, 1024, -2048, 4096, -1024, 2048, -2048, -512]
    rows = [memory_row(at, size, abs(size), sum(sizes[: at + 1])) for at, size in enumerate(sizes)]
    whole = held_of(written(tmp_path, rows))
    for lost in ({1}, {1, 2}, {2, 6}, {4}, {1, 2, 4, 6}):
        held = held_of(written(tmp_path, [row for at, row in enumerate(rows) if at not in lost]))
        assert (held.peak(0, 0)[0], held.notes) == (whole.peak(0, 0)[0], whole.notes), lost


# Saved --------------------------------------------------------------------------------------------

ROWS = {name: np.arange(3) for name in ("name", "start_ns", "duration_ns")} | {"kind": np.zeros(3, np.int64)}
TEXTS = {"kind": ["operator"], "name": ["a", "b", "c"]}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(-(2**49), 2**49), st.integers(-1, 7), st.integers(-1, 2**63 - 1),
            st.integers(-(2**40), 2**40), st.integers(-1, 2**48),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_what_is_saved_is_what_is_read(tmp_path_factory, rows):
    names = ("rank", "time_ns", "device", "address", "bytes", "allocated_bytes")
    events = MemoryEvents({
        name: np.array([row[at] for row in rows], np.int64) for at, name in enumerate(names)
    })  # fmt: skip

    path = tmp_path_factory.getbasetemp() / "events.parquet"
    Trace(ROWS, TEXTS, memory=events).save(path, force=True)
    again = Trace.load(path)

    assert {name: column.tolist() for name, column in again.columns.items()} == {
        name: column.tolist() for name, column in ROWS.items()
    }
    assert (again.texts, again.memory is None) == (TEXTS, not rows)
    for name in COLUMNS if rows else ():
        assert again.memory[name].tolist() == events[name].tolist(), name


def saved(folder, text):
    """Save a trace whose file, of schema 1, says this of memory."""
    trace = daydream.load(written(folder, []))
    table = pa.Table.from_batches([trace.to_arrow()])
    path = folder / "t.parquet"
    about = {b"daydream": json.dumps({**trace.metadata, "schema_version": 1}), b"daydream.memory": text}
    parquet.write_table(table.replace_schema_metadata(about), path)
    return path


def encoded(table):
    file = io.BytesIO()
    parquet.write_table(table, file)
    return base64.b64encode(file.getvalue())


def int64(*values):
    return pa.array(values, pa.int64())


MADE_UP = {
    "null": (encoded(pa.table({"time_ns": int64(None), "bytes": int64(1)})), "has holes"),
    "text": (encoded(pa.table({"time_ns": ["x"], "bytes": ["y"]})), "are not columns of integers"),
    "lacking": (encoded(pa.table({"bytes": int64(1)})), "lacks columns"),
    "twice": (
        encoded(pa.Table.from_arrays([int64(1), int64(1), int64(2)], ["time_ns", "bytes", "bytes"])),
        "are not columns of integers, each once",
    ),
    "large": (encoded(pa.table({"time_ns": int64(1), "bytes": int64(2**62)})), "'bytes' .* out of its range"),
    "many": (
        encoded(pa.table({name: pa.array(np.zeros(8_000_000, np.int64)) for name in ("time_ns", "bytes")})),
        "more than its size allows",
    ),
    "cut": (encoded(pa.table({"time_ns": int64(1), "bytes": int64(1)}))[:-40], "cannot be read"),
    "no base64": (b"\xff\x00###", "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE_UP)
def test_a_file_that_was_made_up_is_refused_in_one_line(tmp_path, name):
    text, said = MADE_UP[name]
    path = saved(tmp_path, text)

    with pytest.raises(TraceError, match=said) as refused:
        Trace.load(path)

    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


TRUE = {
    "kind": ["operator", "memory", "memory"], "name": ["a", None, None], "start_ns": [5, -7, 9],
    "duration_ns": [1, None, None], "memory_bytes": [None, 512, -512],
}  # fmt: skip
UNTRUE = {
    "before": ({"kind": ["memory", "operator", "memory"]}, "are not its last rows"),
    "no time": ({"start_ns": [5, None, 9]}, "'time_ns' .* out of its range"),
    "no bytes": ({"memory_bytes": [None, 512, None]}, "'bytes' .* out of its range"),
    "large": ({"memory_bytes": [None, 2**62, 1]}, "'bytes' .* out of its range"),
    "negative total": ({"allocated_bytes": [None, 1, -5]}, "'allocated_bytes' .* out of its range"),
    "device": ({"device": [None, 1, 2**40]}, "'device' .* out of its range"),
    "rank": ({"rank": [0, 0, -3]}, "'rank' .* out of its range"),
    "text": ({"memory_bytes": ["x", "y", "z"]}, "integers were needed"),
    "lacking": ({"memory_bytes": None}, "lacks columns"),
}  # fmt: skip


def saved_rows(path, **changes):
    """Write a file of these columns, which says that it is a trace."""
    arrays = {
        name: pa.array(column).dictionary_encode() if name in ("kind", "name") else pa.array(column)
        for name, column in (TRUE | changes).items()
        if column is not None
    }
    table = pa.table(arrays).replace_schema_metadata({b"daydream": json.dumps({"schema_version": 2})})
    parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("name", UNTRUE)
def test_rows_of_memory_that_cannot_be_are_refused_in_one_line(tmp_path, name):
    changes, said = UNTRUE[name]
    path = saved_rows(tmp_path / "t.parquet", **changes)

    with pytest.raises(TraceError, match=said) as refused:
        Trace.load(path)

    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


# Odd rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        memory_row(30, None, 64),
        memory_row(30, "many", 64),
        memory_row(30, 2**62, 64),
        memory_row(30, -(2**70), 64),
        memory_row(None, 512, 64),
        memory_row(1e300, 512, 64),
        memory_row(30, 512, 64, Device_Type=77),
        memory_row(30, 512, 64, Device_Type=None),
        memory_row(30, 512, 64, Device_Id=-1),
        memory_row(30, 512, 64, Device_Id=2**40),
    ],
)
def test_a_row_that_holds_no_event_is_left_out_and_counted(tmp_path, row):
    path = written(tmp_path, [*BOTH, row])

    assert daydream.load(path).memory["bytes"].tolist() == [1024, -1024]
    assert f"1 row {LEFT_OUT} was left out." in notes_of(path)


def test_totals_that_are_none_are_unknown_and_counted(tmp_path):
    rows = [memory_row(10, 512, 64, -7), memory_row(11, 512, 128, 2**62), memory_row(12, 512, 192, None)]
    path = written(tmp_path, rows)

    assert daydream.load(path).memory["allocated_bytes"].tolist() == [-1, -1, -1]
    assert "2 totals of memory events were no amounts of memory and are unknown." in notes_of(path)


SAID = {  # bytes, address, and total of events -> how each doubt begins
    "given out twice": (
        [(512, 64), (512, 64), (-512, 64), (512, 64)],
        ["1 allocation at addresses in use: the frees between are missing"],
    ),
    "freed and given out again": ([(512, 64), (-512, 64), (1024, 64), (-1024, 64), (512, 64)], []),
    "another size": (
        [(512, 64), (-1024, 64)],
        ["1 free of memory gave back another size than was allocated there."],
    ),
    "4,096 bytes were held, and the total says so": ([(-4096, 64, 0), (512, 128, 512)], []),
    "more than was held": (
        [(512, 128, 512), (-4096, 64)],
        ["device 0 freed 4,096 bytes more than its recorded totals say it held"],
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_events_say_against_each_other_is_said(tmp_path, name):
    events, begins = SAID[name]

    said = held_of(written(tmp_path, [memory_row(at, *event) for at, event in enumerate(events, 1)])).notes

    assert [text[: len(begin)] for text, begin in zip(said, begins, strict=True)] == begins


def test_a_lost_free_is_where_the_address_is_given_out_again(tmp_path):
    events = [(512, 64), (1024, 128), (2048, 64), (-2048, 64), (-1024, 128)]

    held = held_of(written(tmp_path, [memory_row(at, *event) for at, event in enumerate(events, 1)]))

    assert held.held(0, 0)[1].tolist() == [0, 512, 1536, 1024, 3072, 1024, 0]


def test_frees_on_the_cpu_of_an_earlier_recording_are_left_out_and_said(tmp_path):
    """Torch's total of the CPU, too, counts what an earlier recording saw."""
    cpu = {"Device_Type": 0, "Device_Id": -1}
    rows = [memory_row(1, -4096, 64, 1000, **cpu), memory_row(2, 512, 128, 1512, **cpu)]
    trace = daydream.load(written(tmp_path, rows))

    held = paired(trace, trace.memory)

    assert len(held.notes) == 1
    assert held.notes[0].startswith("1 free on the CPU was of memory from an earlier recording")
    assert held.notes[0].endswith("and was left out.")
    assert held.peak(0, HOST)[0] == 512
    assert trace.memory["allocated_bytes"].tolist() == [1000, 1512]  # as recorded


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-3, 3), st.integers(-1, 1)), max_size=30))
def test_any_events_are_paired_and_what_they_add_up_to_is_held(rows):
    """However senseless: what is held changes by each event's bytes, from what was held before."""
    events = MemoryEvents({
        "time_ns": np.arange(len(rows)),
        "address": np.array([address for address, _, _ in rows], np.int64),
        "bytes": np.array([512 * amount for _, amount, _ in rows], np.int64),
        "device": np.array([abs(device) for _, _, device in rows], np.int64),
    })  # fmt: skip

    held = paired(Trace({}, {}), events)

    for device in (0, 1):
        own = (events["device"] == device) & (events["bytes"] != 0)
        places, totals = held.held(0, device)
        if not re.search("another size|in use", " ".join(held.notes)):
            changes = np.diff(totals)
            assert changes.tolist() == events["bytes"][own].tolist()
            assert (places[1:] // EVENT).tolist() == np.flatnonzero(own).tolist()
        assert totals.min() >= 0


# What info says -----------------------------------------------------------------------------------


# Recorded events become allocations


# Lifetimes tell the kind: steps written by hand, every allocation with the answer beside it


ON_GPU = {**PARAMETER, "device": "cuda:0"}


def kinds_of(held):
    """Bytes -> the set of kinds that allocations of that size have."""
    found = {}
    for nbytes, kind in zip(held["bytes"].tolist(), held["kind"].tolist(), strict=True):
        found.setdefault(nbytes, set()).add(KINDS[kind])
    return found


def trained(folder, *numbers, device=-1, before=0, **metadata):
    """A trace of steps of these numbers."""
    recording = Recording(device=device, before=before)
    for number in numbers:
        training_step(recording, number)
    trace = recording.trace(folder)
    trace.metadata |= metadata
    return trace


def test_each_lifetime_has_its_kind(tmp_path):
    held = allocations(trained(tmp_path, 3, 4, 5))

    assert kinds_of(held) == {
        64: {"input"},
        2048: {"activation"},
        100: {"temporary"},  # of forward
        8: {"activation"},  # the loss: backward starts from it
        4000: {"gradient"},
        2000: {"temporary"},  # of backward
        30: {"temporary"},  # of the optimizer
    }
    assert set(held.texts("phase")) <= {None, "forward", "loss", "backward", "optimizer"}


def test_parameters_and_state_come_from_the_metadata(tmp_path):
    held = allocations(trained(tmp_path, 3, 4, parameters=[PARAMETER], optimizers=[SGD]))

    rows = held.where(kind=("parameter", "optimizer_state"))
    assert held["bytes"][rows].tolist() == [4000, 4000]
    assert (held["begin"][rows] == BEFORE).all()
    assert (held["end"][rows] == AFTER).all()
    assert [text for text, row in zip(held.texts("layer"), rows, strict=True) if row] == ["a", "a"]
    gradients = np.flatnonzero(held.where(kind="gradient"))
    assert {held.parameter(row)["name"] for row in gradients} == {"a.weight"}


def test_buffers_of_collectives_on_the_cpu_end_with_their_call(tmp_path):
    recording = Recording()
    for number in (3, 4):
        start = recording.now
        recording.inside("aten::mm", ("a", 512), "a")
        recording.inside("c10d::allreduce_", (f"lost {number}", 4096))
        recording.inside("aten::mm", ("b", 512), "b")
        recording.range(f"ProfilerStep#{number}", start)

    held = allocations(recording.trace(tmp_path))

    assert held.peak(0, -1)[0] == 4096
    assert held["end"][held["bytes"] == 4096].tolist() == [3 * EVENT - STEP, 8 * EVENT - STEP]
    assert "2 buffers of collectives on the CPU" in held.notes[0]


def test_sharded_parameters_count_with_the_part_of_this_rank(tmp_path):
    parameter, optimizer = {**PARAMETER, "local_bytes": 2000}, {**SGD, "local_state_bytes": 2000}
    held = allocations(trained(tmp_path, 3, parameters=[parameter], optimizers=[optimizer]))

    rows = held.where(kind=("parameter", "optimizer_state"))
    assert held["bytes"][rows].tolist() == [2000, 2000]


def test_a_count_of_steps_lies_on_the_cpu_unless_the_optimizer_is_fused(tmp_path):
    counted = {**SGD, "state_bytes": 4000 + 4}
    fused = {**counted, "groups": [{**SGD["groups"][0], "settings": {"fused": True}}]}
    bytes_of = {}
    for name, optimizer in (("plain", counted), ("fused", fused)):
        described = {"parameters": [ON_GPU], "optimizers": [optimizer]}
        held = allocations(trained(tmp_path, 3, device=0, before=2**20, **described))
        bytes_of[name] = held["bytes"][held.where(kind="optimizer_state")].tolist()
    assert bytes_of == {"plain": [4096], "fused": [4096, 512]}


def test_a_second_kind_of_device_is_not_taken_for_the_first(tmp_path):
    path = written(tmp_path, [*BOTH, memory_row(30, 512, 4096, Device_Type=12)])

    assert len(daydream.load(path).memory) == 2
    assert "1 row of memory of a second kind of device was left out." in notes_of(path)
