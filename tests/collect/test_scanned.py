"""The compiled scanner gives what objects give, or refuses; it reads nothing beyond its arrays."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_text import document, note, op, row, training

from daydream import compiled
from daydream.collect.importers.kineto.blocks import EventReader
from daydream.collect.importers.kineto.reader import read_kineto
from daydream.collect.importers.kineto.scanned import WIDTH, WORDS, Scanner, Table, _fields
from daydream.errors import TraceError

ENGINE = compiled.engine()
needs_engine = pytest.mark.skipif(
    ENGINE is None, reason="the compiled loops were not built, or DAYDREAM_COMPILED=0 turns them off"
)
ODD_VALUES = (
    None, True, "", "stream 7", "0x1f", "-1", -1, 0, 1.5, 7.0, 1e-7, -3.25, 123456.7890123, 8796093022208.5,
    1690987654321123.456, 9007199254740993, 10**17, 10**18, 2**62, 2**63, 2**64 - 1, -(10**30), 1e300, [], {},
    [1], 'a"b\\c', "é", "\ud800", "\u2028", "kernel", "nn.Module: Linear_0", "ProfilerStep#3", "overhead",
    "[memory]", "X", "Memset", "async_npu", "Memcpy M2D (a)", "mtia_runtime",
)  # fmt: skip
PIECES = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0041", b"0", b"e5", b".", b"-", b"\xff", b"\x01",
    b"NaN", b'"args":{},', b'{"a":1},{"b":2}', b"01", b"\xc3\xa9",
)  # fmt: skip
FIELDS, OUTER = [name.decode() for name in _fields()[0]], _fields()[2]


def events_of_all_kinds() -> list[dict[str, Any]]:
    events = training(2)
    frame = {"ph": "X", "cat": "python_function", "pid": 1, "tid": "thread 1", "dur": 3}
    for number in range(6):
        events += [
            {**frame, "ts": number, "name": f"my/train.py({number}): step"},
            {**frame, "ts": number, "name": f"nn.Module: Linear_{number % 2}"},
            {**frame, "ts": number, "name": "queue.py(9): get", "dur": 45 + 2 * number},
            row("overhead", "Buffer Flush", number, 60, pid=-1, tid=0),
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": number,
             "args": {"Addr": 64, "Bytes": 8 * number, "Device Type": 0, "Device Id": -1}},
            {"ph": "s", "cat": "ac2g", "id": number, "ts": number},
            {**op("odd", number, 1), "cat": f"strange{number % 2}"},
            op("nn.Module: a.b", number, 2, External_id=7, Module_Hierarchy="x"),
            op("ProfilerStep#9", number, 1),
            row("cuda_sync", "Stream Wait Event", number, 1, pid=0, tid=7, wait_on_stream=3, stream=7),
            row("gpu_memcpy", "Memcpy DtoD", number, 2, pid=0, tid="stream 7", size=8),
            row("kernel", "ncclDevKernel_AllReduce", number, 2, pid=0, tid=9, Collective_name="allreduce",
                In_msg_nelems=8, dtype="Float", Process_Group_Ranks="[0, 1]"),
        ]  # fmt: skip
    return events


def outcome(path: Path, block_bytes: int) -> Any:
    """Return all that is read of a file, or why nothing is."""
    try:
        recording = read_kineto(path, block_bytes=block_bytes)
    except TraceError as error:
        return str(error)
    columns = {name: column.tolist() for name, column in recording.columns.items()}
    return repr((sorted(columns.items()), sorted(recording.texts.items()), recording.metadata))


def check_the_same(path: Path, block_bytes: int) -> None:
    scanned = outcome(path, block_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.VARIABLE, "0")
        assert outcome(path, block_bytes) == scanned


@needs_engine
def test_a_usual_file_is_scanned(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(events_of_all_kinds(), baseTimeNanoseconds=5)))
    assert all(isinstance(events, Table) for events in EventReader(path, block_bytes=4096))
    check_the_same(path, 4096)


@needs_engine
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_any_field_is_read_as_by_objects(tmp_path, value):
    events = events_of_all_kinds()
    kinds = ("cpu_op", "cuda_runtime", "gpu_memcpy", "cuda_sync", "python_function")
    for number, name in enumerate(FIELDS):
        for kind in ("kernel", kinds[number % len(kinds)]):
            event = copy.deepcopy(next(each for each in events if each.get("cat") == kind))
            holder = event if number < OUTER else event.setdefault("args", {})
            holder[name] = value
            path = tmp_path / f"{number}{kind}.json"
            given_events = document([*training(1), event, note("end", 900, 9)])
            path.write_text(json.dumps(given_events, indent=number % 2 or None), "utf-8")
            check_the_same(path, 700)


@needs_engine
@settings(max_examples=60)
@given(st.data())
def test_damaged_bytes_are_read_as_by_objects(tmp_path_factory, data):
    text = bytearray(json.dumps(document(events_of_all_kinds())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(PIECES))
    path = tmp_path_factory.mktemp("damaged") / "t.json"
    path.write_bytes(text)
    check_the_same(path, data.draw(st.sampled_from([700, 4096, 1 << 20])))


@needs_engine
def test_a_text_that_ends_early_is_refused_wherever_it_ends():
    text = json.dumps(events_of_all_kinds()[:12], ensure_ascii=False).encode()
    scanner = Scanner(exact=False)
    assert scanner.table(text) is not None
    assert all(scanner.table(text[:end]) is None for end in range(1, len(text)))


def texts_of_one_hash(count: int) -> list[str]:
    """Return different texts that the scanner gives one hash: their second words undo the first ones."""
    times, half = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
    letters = np.random.default_rng(0).integers(97, 123, (1 << 21, 8), np.uint8)
    letters[:, 0] = ord('"')
    with np.errstate(over="ignore"):
        after = (np.uint64(24) ^ letters.view(np.uint64)[:, 0]) * times
        after ^= after >> half
        second = (after ^ np.frombuffer(b"\x80 chosen", np.uint64, 1)[0]).view(np.uint8).reshape(-1, 8)
    plain = ((second >= 32) & (second < 127) & (second != ord('"')) & (second != ord("\\"))).all(axis=1)
    firsts, seconds = (some[plain][:count].tobytes().decode() for some in (letters, second))
    return [firsts[at + 1 : at + 8] + seconds[at : at + 8] + "the end" for at in range(0, len(firsts), 8)]


@needs_engine
def test_texts_that_were_chosen_to_stand_in_each_others_way_are_read_as_objects(tmp_path):
    texts = texts_of_one_hash(700)
    assert len(set(texts)) == 700
    few, many = (json.dumps([op(text, 1, 2) for text in texts[:count]]).encode() for count in (300, 700))
    assert Scanner(exact=False).table(few) is not None
    assert Scanner(exact=False).table(many) is None
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document([*training(1), *json.loads(many)])))
    check_the_same(path, 1 << 20)


def arguments(text: bytes = b'[{"ph": "X", "cat": "kernel", "name": "k"}]', **other: Any) -> list[Any]:
    """Return what `scan` takes, some of it replaced."""
    names, how, top, words, kinds, blank = _fields()
    given_arrays = {
        "names": names, "how": how, "top": top, "words": words, "kinds": kinds, "blank": blank, "text": text,
        "rows": np.empty((4, WIDTH), np.int64), "spans": np.empty((64, 2), np.int64),
        "hashes": np.empty(64, np.int64), "slots": np.empty(128, np.int32), "exact": False,
    }  # fmt: skip
    return list((given_arrays | other).values())


@needs_engine
def test_rows_and_texts_that_have_no_room_are_refused():
    assert ENGINE.scan(*arguments()) == (1, len(WORDS) + 1, 0)
    event = b'{"ph": "X", "cat": "kernel", "name": "%d"}'
    many = b"[" + b",".join(event % number for number in range(5)) + b"]"
    assert ENGINE.scan(*arguments(many)) is None
    many = b"[" + b",".join(b'{"ph": "s", "name": "%d"}' % number for number in range(64)) + b"]"
    assert ENGINE.scan(*arguments(many)) is None


@needs_engine
@pytest.mark.parametrize(
    "other",
    [
        {"blank": np.zeros(WIDTH - 1, np.int64)}, {"spans": np.empty((63, 2), np.int64)},
        {"hashes": np.empty(63, np.int64)}, {"slots": np.empty(96, np.int32)},
        {"slots": np.empty(0, np.int32)},
        {"rows": np.empty(WIDTH + 1, np.int64)}, {"top": 3}, {"top": 99}, {"top": -1}, {"how": b"tt"},
        {"names": (b"ph", b"cat", b"name")}, {"names": ()}, {"names": (b"ph",) * 99, "how": b"t" * 99},
        {"words": b'"X"'}, {"words": b'"X""X""X"', "kinds": bytes(3)}, {"words": b"", "kinds": b""},
        {"words": b'"X', "kinds": bytes(3)}, {"words": b"1", "kinds": bytes(3)},
    ],
    ids=" ".join,
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(other):
    with pytest.raises(ValueError, match=r"must be|needed"):
        ENGINE.scan(*arguments(**other))


@needs_engine
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 3)), max_size=20),
    st.integers(0, 15),
)
def test_rows_become_columns_in_order_of_their_kinds(rows, always):
    table = np.array([(*row, number) for number, row in enumerate(rows)], np.int64).reshape(-1, 4)
    columns, edges, fields = np.full((4, len(rows)), -9), np.empty(5, np.int64), np.empty((2, 4), np.int64)
    ENGINE.by_kind(table, 4, 2, always, columns, edges, fields)
    order = np.argsort(table[:, 2], kind="stable")
    taken = np.bitwise_or.reduce(table[:, 0], initial=always)
    for place in range(4):
        expected = table[order, place] if taken >> place & 1 else np.full(len(rows), -9)
        assert columns[place].tolist() == expected.tolist()
    assert edges.tolist() == np.searchsorted(table[order, 2], range(5)).tolist()
    for place, kind in np.ndindex(2, 4):
        assert fields[place, kind] == np.bitwise_or.reduce(table[table[:, 2] == kind, place], initial=0)


@needs_engine
@pytest.mark.parametrize(
    "other",
    [
        {"width": 1}, {"width": 65}, {"width": -1}, {"width": 5}, {"at": 4}, {"at": -1}, {"at": 3},
        {"columns": np.empty(7, np.int64)}, {"edges": np.empty(0, np.int64)},
        {"edges": np.empty(99, np.int64)}, {"edges": np.empty(3, np.int64)},
        {"fields": np.empty(5, np.int64)},
    ],
    ids=range(12),
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(other):
    rows = np.array([[0, 0, 1, 9], [0, 0, 0, -1]], np.int64)
    given_arrays = {
        "rows": rows, "width": 4, "at": 2, "always": 0, "columns": np.empty((4, 2), np.int64),
        "edges": np.empty(4, np.int64), "fields": np.empty(6, np.int64),
    }  # fmt: skip
    ENGINE.by_kind(*given_arrays.values())
    with pytest.raises(ValueError, match=r"must be|needed|out of range"):
        ENGINE.by_kind(*(given_arrays | other).values())
