"""Kineto files that are damaged or odd: counted and left out, or refused in one clear line."""

import gzip
import json

import pytest
from kineto_text import document, op, row, training, write
from shared import refused, shared_trace

from daydream.collect.importers import import_trace
from daydream.collect.importers.formats import format_of
from daydream.collect.importers.kineto.blocks import EventReader


def imported(tmp_path, events):
    return import_trace([write(tmp_path / "trace.json", document(events))])


@pytest.mark.parametrize(
    ("new", "mended"),
    [
        ('"bandwidth (GB/s)": inf', 1),
        ('"x": [-nan(ind), 1.#INF, +inf, "a",]', 4),
        ('"x": "Library("a", "IMPL")\n(1): <module>", "' + 90 * "a" + '": 1', 1),
        ('"x": ["a "quoted" word", "b"], "y": "C:\\users"', 2),
        ('"x": "tab\there", "y": "{"a": 1}"', 2),
        ('"x": "it ends so: \\""', 0),
    ],
)
@pytest.mark.parametrize("as_list", [False, True])
def test_what_profilers_write_and_is_no_json_is_mended(tmp_path, new, mended, as_list):
    events = training(2)
    events[4]["args"]["place"] = 1
    text = json.dumps(events if as_list else document(events)).replace('"place": 1', new)
    trace = import_trace([write(tmp_path / "trace.json", text)])
    assert trace.values("name") == imported(tmp_path, training(2)).values("name")
    said = f"Places that were no JSON (inf, quotes in texts, say) and were mended: {mended}."
    assert trace.metadata["notes"] == ([said] if mended else [])


@pytest.mark.parametrize("new", ["inf", '"Library("a", "IMPL")"'])
def test_a_large_file_is_mended_block_by_block(tmp_path, new):
    text = json.dumps(document([{**op("aten::mm", at, 1), "args": {"x": at % 10}} for at in range(400)]))
    path = write(tmp_path / "t.json", text.replace('"x": 7}', f'"x": {new}}}'))
    reader = EventReader(path, block_bytes=1 << 12)
    assert min(len(text) // (1 << 13), sum(1 for _ in reader)) == len(text) // (1 << 13)
    assert (reader.mended, reader.unreadable) == (40, 0)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_json_is_read_in_any_encoding_of_unicode(tmp_path, encoding, name):
    text = json.dumps(document([*training(2), op("caf\u00e9", 5, 1)]), ensure_ascii=False)
    assert "caf\u00e9" in import_trace([write(tmp_path / name, text.encode(encoding))]).values("name")


def test_the_list_of_the_old_profiler_is_read_or_named(tmp_path):
    rows = [
        {"name": "aten::mm", "ph": "X", "ts": 10 * at, "dur": 5, "tid": 1, "pid": "CPU functions", "args": {}}
        for at in range(3)
    ]
    trace = import_trace([write(tmp_path / "t.json", rows)])
    assert (trace.values("kind"), trace.metadata["vendor"]) == (["operator"] * 3, "cpu")
    assert trace["start_ns"].tolist() == [0, 10_000, 20_000]
    rows.append({**rows[0], "pid": "CUDA functions"})
    assert "old autograd profiler" in refused(write(tmp_path / "t.json", rows))


@pytest.mark.parametrize("name", ["kineto_105_inf", "pytorch_113001_unescaped_quotes", "utf16_by_powershell"])
def test_the_shared_symptoms_are_read(name):
    sound = import_trace([shared_trace("cases/symptoms/tiny_ok.json")])
    trace = import_trace([shared_trace(f"cases/symptoms/{name}.json")])
    kernels = trace.is_kind("kernel")
    assert trace["duration_ns"][kernels].tolist() == sound["duration_ns"][sound.is_kind("kernel")].tolist()
    assert [step["measured_ns"] for step in trace.metadata["steps"][1:]] == [1_000_000] * 3


# What is odd is counted


def test_rows_without_sense_are_left_out_and_counted(tmp_path):
    events = [
        *training(2),
        op("negative", 100, -5),
        op("no time", None, 5),
        op("not a number", "soon", 5),
        op("no end", 7, None),
        op("last year", -3e13, 5),
        op("forever", 9, 1e12),
        row("mystery", "x", 1, 1),
    ]
    trace = imported(tmp_path, events)
    assert len(trace) == len(imported(tmp_path, training(2)))
    notes = " ".join(trace.metadata["notes"])
    for part in (
        "1 row ended before it began",
        "3 rows had no readable time",
        "2 rows began or lasted",
        "'mystery'",
    ):
        assert part in notes


def test_values_of_a_wrong_type_do_not_spoil_the_other_rows(tmp_path):
    events = [*training(2), "text", 5, None, [1]]
    events[2] = {
        **events[2],
        "tid": True,
        "args": {**events[2]["args"], "External id": [1], "Input Dims": "none"},
    }
    trace = imported(tmp_path, events)
    assert len(trace) == len(imported(tmp_path, training(2)))
    assert any("4 rows could not be read" in note for note in trace.metadata["notes"])


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("1e999999999999", None), ("-1e400", None), ("sNaN", None), ("0x10", None), ("", None),
        ("1e-999999", 0), ("\u0661\u0662", 12_000),  # digits of any script are a number to Python
    ],
)  # fmt: skip
def test_a_time_written_strangely_is_read_or_counted(tmp_path, time, read):
    trace = imported(tmp_path, [*training(1), op("strange", time, time)])
    names, said = trace.values("name"), ["1 row had no readable time and was left out."]
    durations = [int(trace["duration_ns"][row]) for row, name in enumerate(names) if name == "strange"]
    assert durations == ([] if read is None else [read])
    assert trace.metadata["notes"] == (said if read is None else [])
    assert len(trace) == len(imported(tmp_path, training(1))) + len(durations)


def test_text_that_cannot_be_encoded_is_cleaned(tmp_path):
    text = json.dumps(document([*training(1), op("half \ud83d", 5, 1)]))
    trace = import_trace([write(tmp_path / "trace.json", text)])
    (name,) = [name for name in trace.values("name") if name and name.startswith("half")]
    assert name.encode("utf-8").startswith(b"half ")
    assert trace.to_arrow().num_rows == len(trace)


# What is no trace


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"PK\x03\x04 something", "ZIP archive; unpack"),
        (b"PK\x03\x04" + 26 * b"\0" + b"model/data.pkl" + b"FB", "a file of torch.save, not a trace"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save, not a trace"),
        (b"\x80\x04\x95\x01}\x94.", "memory: `daydream memory --snapshot "),
        (b'{"segments": [], "device_traces": []}', "not a trace: `daydream memory --snapshot "),
        (b'[{"device": 0, "address": 1, "blocks": []}]', "not a trace: `daydream memory --snapshot "),
        (b'{"columns":["action","addr","size"]}\n[]', "not a trace: `daydream memory --snapshot "),
        (b"hello", "not JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:a1\nsize 5\n", "git lfs pull"),
        (b"/annex/objects/SHA256E-s5--a1.json", "git annex get"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html>", "HTML"),
        (b'{"traceEvents": [{"ph": "X", "name": inf nan}]}', "not valid JSON"),
        (b"{", "cut off"),
        (b"[", "cut off"),
        (b"{}", "without a `traceEvents`"),
        (b'{"a": 1}', "without a `traceEvents`"),
        (b'{"schema": "1.0", "nodes": [{"id": 1}]}', "PyTorch execution trace"),
        (b'{"traceEvents": []}', "holds no operator"),
        (b"[]", "holds no operator"),
        (b'{"traceEvents": {}}', "without a `traceEvents` list"),
        (b'{"traceEvents": [1, 2]}', "holds no operator"),
        (b'{"traceEvents": [{"ph": "X" "cat": "cpu_op"}]}', "not valid JSON"),
        (b"\x1f\x8b\x08nonsense", "gzip data is cut off or damaged"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_trace_gets_one_clear_line(tmp_path, content, says):
    assert says in refused(write(tmp_path / "trace.json", content))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<\0\0\0ED00", "etdump"),
        (b"\n<a\0\x08\0\0\0ED00", "etdump"),
        (b"BZh\0ED00", "etdump"),
        (b"\n<\x08\x07\x12\x36/host:CPU", "xplane"),  # a plane of 60 bytes
    ],
)
def test_a_binary_file_may_begin_with_the_bytes_of_a_page(tmp_path, content, named):
    assert format_of(write(tmp_path / "t", content)) == named


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_said_to_be_cut_off(tmp_path, packed, share):
    text = json.dumps(document(training(20))).encode()
    data = gzip.compress(text) if packed else text
    path = tmp_path / "trace.json"
    path.write_bytes(data[: int(len(data) * share)])
    assert "cut off" in refused(path)


def test_missing_files_and_empty_folders_are_said_to_be(tmp_path):
    assert "no such file" in refused(tmp_path / "none.json")
    assert "holds no trace" in refused(tmp_path)
    assert "no source" in refused()
