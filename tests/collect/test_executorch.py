"""ExecuTorch's files (`executorch/record.py` of d6db2c6c): time is counted once, layers are Inspector's.

The tables beside the ETDumps are what Inspector of the same version made of them: an answer that is not ours.
"""

import gzip
import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream.collect.derive.build import derive
from daydream.collect.importers.etrecord import read_etrecord
from daydream.collect.importers.executorch import Row, recording_of
from daydream.collect.importers.formats import is_inspector
from daydream.errors import TraceError
from daydream.handles import Handle

FILES = Path(__file__).parent / "executorch"
BACK_ENDS = ("portable", "xnnpack")


def imported(name):
    return daydream.load(FILES / f"{name}.etdp", etrecord=FILES / f"{name}.etrecord")


def table(name):
    return json.loads((FILES / f"{name}.json").read_text())


def own_ns(trace):
    """Return each row's time without that of the rows directly within it."""
    parent, duration = np.asarray(trace["parent"]), np.asarray(trace["duration_ns"], np.int64)
    own = duration.copy()
    np.subtract.at(own, parent[parent >= 0], duration[parent >= 0])
    return own


def layers_by_name(trace):
    found = {}
    for name, layer in zip(trace.values("name"), trace.values("layer"), strict=True):
        found.setdefault(name, set()).add(layer)
    return found


@pytest.mark.parametrize("name", BACK_ENDS)
def test_the_time_of_a_run_is_counted_once(name):
    trace = imported(name)
    runs = next(row for row in table(name) if row["event_name"] == "Method::execute")
    whole = sum(round(time * 1e6) for time in runs["raw"])
    in_runs = np.asarray(trace["step"]) >= 0
    assert (own_ns(trace) >= 0).all()
    assert own_ns(trace)[in_runs].sum() == whole
    rows = np.asarray(trace["duration_ns"], np.int64)[in_runs].sum()
    assert rows > 1.5 * whole  # what adding up the rows would have said


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("name", BACK_ENDS)
def test_an_etdump_and_the_table_of_inspector_give_the_same_rows(name, kind):
    ours, theirs = imported(name), daydream.load(FILES / f"{name}.{kind}")
    for column in ("kind", "name", "start_ns", "duration_ns", "parent", "layer", "phase", "step"):
        assert ours.values(column) == theirs.values(column), column
    kernel = [row for row, text in enumerate(ours.values("name")) if text.startswith("native_call_")]
    assert ours.values("op", kernel) == theirs.values("op", kernel)


def test_layers_are_those_that_inspector_says():
    trace = imported("portable")
    found = layers_by_name(trace)
    for row in table("portable"):
        said = {list(stack.values())[-1][0] or None for stack in row["module_hierarchy"].values()}
        if row["event_name"].startswith("native_call_"):
            assert said <= found[row["event_name"]]
    assert found["native_call_convolution.out"] == {"block.conv"}
    assert found["native_call__native_batch_norm_legit_no_training.out"] == {"block.norm"}
    assert found["native_call_relu.out"] == {"block", None}  # one of the block, one of the model itself
    assert found["native_call_addmm.out"] == found["native_call_permute_copy.out"] == {"fc1", "fc2"}
    assert found["native_call_mean.out"] == {None}  # of the model itself
    assert found["Method::execute"] == {None}


def test_a_run_of_the_program_is_a_step():
    trace = imported("portable")
    assert trace.metadata["step_source"] == "runs of Method::execute"
    assert [step["name"] for step in trace.metadata["steps"]] == [f"run {number}" for number in range(6)]
    assert [step["covered"] for step in trace.metadata["steps"]] == [False, True, True, True, True, True]


def test_a_delegate_without_a_map_keeps_its_own_names_and_says_so():
    trace = imported("xnnpack")
    row = trace.values("name").index("Convolution (NHWC, F32) IGEMM #1")
    assert trace.values("op", [row]) == ["Convolution (NHWC, F32) IGEMM #1"]
    assert trace.values("layer", [row]) == trace.values("handle", [row]) == [None]
    assert any(
        "30 rows of delegates (5 names) without debug handles" in note for note in trace.metadata["notes"]
    )
    mean = trace.values("name").index("native_call_mean.out")
    assert trace.values("op", [mean]) == ["aten::mean"]  # what was not delegated is known as elsewhere


def test_operators_of_a_record_weigh_the_bytes_that_they_read_and_write():
    found = read_etrecord(FILES / "xnnpack.etrecord")
    call = found.handles(2, -1, "DELEGATE_CALL")
    assert [handle.operator for handle in call] == ["aten::linear", "aten::relu", "aten::linear"]
    #  2 images: 16 in, 64 weights for each, 64 of bias, 64 out; 64 in, 64 out; 64 in, 10 weights for each ...
    first, second, third = 2 * 16 + 64 * 16 + 64 + 2 * 64, 2 * 64 + 2 * 64, 2 * 64 + 10 * 64 + 10 + 2 * 10
    assert [handle.weight for handle in call] == [4 * first, 4 * second, 4 * third]


def test_rows_of_a_delegate_with_a_map_have_its_handles():
    rows = [
        Row("Method::execute", 0, 10),
        Row("DELEGATE_CALL", 1, 9, identifier="0"),
        Row("1", 2, 5, delegated=True, identifier="0:1"),
        Row("2", 5, 8, delegated=True, identifier="0:2"),
    ]
    both = [Handle("aten::linear", layer="fc1"), Handle("aten::relu", layer="act")]
    entries = {"0": both, "0:1": both[:1], "0:2": both[1:]}
    trace = derive(recording_of(rows, entries, Path("x.etdp"), []))
    assert trace.values("layer") == [None, "fc1", "fc1", "act"]
    assert own_ns(trace).tolist() == [2, 2, 3, 3]


def test_rows_on_a_delegates_own_clock_are_left_out_and_counted():
    rows = [Row("Method::execute", 100, 200), Row("DELEGATE_CALL", 110, 190), Row("mm", 3, 7, delegated=True)]
    trace = derive(recording_of(rows, {}, Path("x.etdp"), []))
    assert trace.values("name") == ["Method::execute", "DELEGATE_CALL"]
    assert trace.metadata["notes"][0].startswith("1 row of delegates outside every DELEGATE_CALL")


@pytest.mark.parametrize("cut", range(0, 8496, 89))
def test_an_etdump_cut_anywhere_is_one_clear_line(tmp_path, cut):
    path = tmp_path / "cut.etdp"
    path.write_bytes((FILES / "portable.etdp").read_bytes()[:cut])
    with pytest.raises(TraceError, match=r"cut off|no ETDump"):
        daydream.load(path)


def test_vectors_that_overlap_do_not_multiply_the_events(tmp_path):
    count = 1_000  # of runs that are all one run, of events that are all one event

    def number(value, size=4):
        return value.to_bytes(size, "little")

    def vector(to):  # offsets from each place on to one that lies behind
        return number(count) + b"".join(number(to + 4 * (count - 1 - index)) for index in range(count))

    def table(field):  # its fields, itself, and the vector or table that one of them leads to
        slots = [0] * field + [4]
        return number(4 + 2 * len(slots), 2) + number(8, 2) + b"".join(number(each, 2) for each in slots)

    root, run, event = table(1), table(3), table(0)
    body = b"".join(
        (
            number(8 + len(root)),
            b"ED00",
            root,
            number(len(root)),
            number(4),
            vector(4 + len(run)),
            run,
            number(len(run)),
            number(4),
            vector(4 + len(event)),
            event,
            number(len(event)),
            number(4),
            event,
            number(len(event)),
            number(0),
        )
    )
    path = tmp_path / "many.etdp"
    path.write_bytes(body)
    with pytest.raises(TraceError, match=r"many\.etdp is cut off or damaged"):
        daydream.load(path)


def test_times_that_run_backwards_are_refused():
    with pytest.raises(
        TraceError, match=r"x\.etdp: 'a' ends before it starts \(3 after 5\); its clock wrapped"
    ):
        recording_of([Row("a", 5, 3)], {}, Path("x.etdp"), [])


def record(path, **files):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "lacks the mark ETRECORD_V0"),
        ({"ETRECORD_V0": "", "debug_handle_map": "{"}, "debug_handle_map is not as ExecuTorch writes it"),
        ({"ETRECORD_V0": "", "debug_handle_map": '{"forward": {"0": "a"}}'}, "debug_handle_map is not as"),
        (
            {"ETRECORD_V0": "", "debug_handle_map": '{"a": {}, "b": {}}'},
            "is of 2 methods, none of them 'forward'",
        ),
        (
            {"ETRECORD_V0": "", "edge_dialect_exported_program": "[" * 100_000},
            "is not as ExecuTorch writes it",
        ),
    ],
)
def test_a_damaged_record_is_one_clear_line(tmp_path, files, said):
    with pytest.raises(TraceError, match=said):
        read_etrecord(record(tmp_path / "x.etrecord", **files))


def test_a_record_that_unpacks_to_much_is_refused(tmp_path):
    path = tmp_path / "x.etrecord"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("ETRECORD_V0", "")
        file.writestr("debug_handle_map", " " * 100_000)
    with pytest.raises(TraceError, match="unpacks to more than 1,000 bytes"):
        read_etrecord(path, max_unpacked=1_000)


def test_a_record_belongs_to_an_etdump():
    with pytest.raises(TraceError, match="is no ETDump, and the ETRecord"):
        daydream.load(FILES / "portable.json", etrecord=FILES / "portable.etrecord")
    with pytest.raises(TraceError, match="is the whole recording of one program; give it alone"):
        daydream.load(FILES / "portable.etdp", FILES / "xnnpack.etdp")


def loaded(folder, *rows):
    """Load a table of these rows."""
    path = folder / "table.json"
    path.write_text(json.dumps(rows))
    return daydream.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start_time": ...}, "without the column 'start_time'"),
        ({"avg (ms)": ...}, "does not say the unit of its times"),
        (
            {"avg (ms)": ..., "avg (cycles)": 1.0},
            "its times are in 'cycles'; ns, us, ms, s were needed. Cycles are no",
        ),
        ({"raw": [-1.0], "start_time": [5]}, "row 0 has the time -1.0 from 5; numbers of 0 or more"),
        ({"raw": [1.0], "start_time": [-5]}, "row 0 has the time 1.0 from -5"),
        ({"raw": [1.0, 2.0], "start_time": [5]}, "row 0 does not have one start_time for each time in raw"),
    ],
)
def test_a_table_with_odd_columns_is_one_clear_line(tmp_path, change, said):
    row = {**table("portable")[2], **change}
    with pytest.raises(TraceError, match=said):
        loaded(tmp_path, {name: value for name, value in row.items() if value is not ...})


def test_a_damaged_footer_is_not_read_as_long_as_it_says(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + b"\0" * 20 + (0xFFFFFFFF).to_bytes(4, "little") + b"PAR0")
    with pytest.raises(daydream.TraceError, match="not a readable parquet file"):
        daydream.load(path)
    tracemalloc.start()
    assert not is_inspector(path, b"PAR1")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def orders(rows):
    columns = {name: {str(number): row[name] for number, row in enumerate(rows)} for name in rows[0]}
    whole = json.dumps(rows).encode()
    return {
        "records": whole,
        "columns": json.dumps(columns).encode(),
        "packed": gzip.compress(whole),
        "lines": b"\n".join(json.dumps(row).encode() for row in rows),
    }


@pytest.mark.parametrize("order", ["records", "columns", "packed", "lines"])
def test_a_table_is_read_in_the_orders_that_pandas_writes(tmp_path, order):
    path = tmp_path / "table.json"
    path.write_bytes(orders(table("portable"))[order])
    trace = daydream.load(path)
    assert trace.values("start_ns") == imported("portable").values("start_ns")
