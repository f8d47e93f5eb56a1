"""Kineto files that are damaged or odd: counted and left out, or refused in one clear line."""

import gzip
import json

import pytest
from graph.small_traces import kineto, op, training, write
from shared import refused, shared_trace

from daydream.collect.importers import import_trace
from daydream.collect.importers.formats import format_of
from daydream.collect.importers.kineto.blocks import EventReader


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
def test_what_profilers_write_and_is_no_json_is_mended(tmp_path, imported, new, mended, as_list):
    document = kineto(training(2))
    document["traceEvents"][4]["args"]["place"] = 1
    text = json.dumps(document["traceEvents"] if as_list else document).replace('"place": 1', new)
    trace = import_trace([write(tmp_path / "mended.json", text)])
    assert trace.values("name") == imported(training(2)).values("name")
    said = f"Places that were no JSON (inf, quotes in texts, say) and were mended: {mended}."
    assert trace.metadata["notes"] == ([said] if mended else [])


@pytest.mark.parametrize("new", ["inf", '"Library("a", "IMPL")"'])
def test_a_large_file_is_mended_block_by_block(tmp_path, new):
    text = json.dumps(kineto([op("aten::mm", at, at + 1, x=at % 10) for at in range(400)]))
    path = write(tmp_path / "t.json", text.replace('"x": 7}', f'"x": {new}}}'))
    reader = EventReader(path, block_bytes=1 << 12)
    assert sum(1 for _ in reader) >= len(text) // (1 << 13)
    assert (reader.mended, reader.unreadable) == (40, 0)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_json_is_read_in_any_encoding_of_unicode(tmp_path, encoding, name):
    text = json.dumps(kineto(training(2), "op caf\u00e9 5 6"), ensure_ascii=False)
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


# -- what is odd is counted ----------------------------------------------------------------------------

DAMAGED = {
    **kineto("op b 2 3")["traceEvents"][0],
    "tid": True,
    "args": {"External id": [1], "Input Dims": "none"},
}


def event(name, ts, dur):
    return {**DAMAGED, "name": name, "tid": 1, "ts": ts, "dur": dur, "args": {}}


@pytest.mark.parametrize(
    ("events", "kept", "said"),
    [
        ([event("negative", 100, -5)], 0, "1 row ended before it began"),
        ([event("a", None, 5), event("b", "soon", 5), event("c", 7, None)], 0, "3 rows had no readable time"),
        ([event("a", -3e13, 5), event("forever", 9, 1e12)], 0, "2 rows began or lasted"),
        ([{**event("x", 1, 1), "cat": "mystery"}], 0, "'mystery'"),
        (["text", 5, None, [1], DAMAGED], 1, "4 rows could not be read"),
        *(([event("a", time, time)], 0, "1 row had no readable time and was left out.")
          for time in ("1e999999999999", "-1e400", "sNaN", "0x10", "")),
        ([event("a", "1e-999999", "1e-999999"), event("a", "\u0661\u0662", "\u0661\u0662")], 2, ""),
        ([event("half \ud83d", 5, 1)], 1, ""),
    ],
)  # fmt: skip
def test_rows_without_sense_are_left_out_and_counted(tmp_path, imported, events, kept, said):
    document = kineto(training(2))
    document["traceEvents"] += events
    trace = import_trace([write(tmp_path / "odd.json", document)])
    assert len(trace) == len(imported(training(2))) + kept
    assert said in " ".join(trace.metadata["notes"])
    assert trace.to_arrow().num_rows == len(trace)  # every text can be encoded


# -- what is no trace ----------------------------------------------------------------------------------


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
        (b"{}", "without a `traceEvents`"),
        (b'{"schema": "1.0", "nodes": [{"id": 1}]}', "PyTorch execution trace"),
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
@pytest.mark.parametrize("share", [0.1, 0.999])
def test_a_truncated_file_is_said_to_be_cut_off(tmp_path, packed, share):
    text = json.dumps(kineto(training(20))).encode()
    data = gzip.compress(text) if packed else text
    assert "cut off" in refused(write(tmp_path / "trace.json", data[: int(len(data) * share)]))


def test_missing_files_and_empty_folders_are_said_to_be(tmp_path):
    assert "no such file" in refused(tmp_path / "none.json")
    assert "holds no trace" in refused(tmp_path)
    assert "no source" in refused()
