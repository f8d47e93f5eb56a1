"""Errors of daydream's own that no other test reaches: what was given, and what is said of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from daydream.optimizations._launches import cuda_graphs
from daydream.optimizations._substitution import metaflow
from graph.small_graphs import kernels
from graph.small_traces import repeated, rows, trace

import daydream
from daydream.collect.captures_beside import read_handles
from daydream.collect.derive.steps import find_steps
from daydream.costs.counters.attaching import attach_counters, path_and_window
from daydream.costs.counters.formats import kernels_of_table
from daydream.costs.device.measured import KernelTable
from daydream.costs.devices import known_devices
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.fitting import read_nccl_tests
from daydream.costs.network.simulated_times import read_simulated_times
from daydream.errors import DaydreamError
from daydream.graph.calls import in_replays
from daydream.graph.tables import nanoseconds
from daydream.memory.settings import settings_of
from daydream.memory.snapshot import read_snapshot
from daydream.parallel import engine_of
from daydream.report.views.step import likely_text
from daydream.tools.tool import tool
from daydream.trace.attach import join

NCU = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
DECIMAL = '"0","k","dram__bytes.sum","byte","1.234,5"\n'
MIXED = '"0","k","dram__bytes.sum","byte","1"\n"0","l","dram__bytes.sum","byte","1"\n'
HANDLE = daydream.Handle("aten::mm")


def graph():
    """Two steps of a call, its kernel and an operator."""
    return daydream.build(repeated("launch k 0 5 15\nop aten::mm 20 30", 40, times=2))


def layer():
    return daydream.build(trace("launch k 0 5 15 layer=a phase=forward", steps=(0, 20)))


# What reads a file of each kind; a row of `bad_files.tsv` is one that cannot be meant, and what is said.
# Its content is text with escapes, and `<100000 [>` is that many of the character.
READERS = {
    "cluster": lambda path: find_cluster(str(path)),
    "counters": lambda path: attach_counters(trace("launch axpy 0 1 2 grid=16,1,1", notes=[]), [path]),
    "handles": read_handles,
    "handles as JSON": lambda path: daydream.DebugHandleMap.from_json(path.read_text()),
    "nccl-tests": read_nccl_tests,
    "simulated times": read_simulated_times,
    "snapshot": read_snapshot,
    "substitutes": lambda path: metaflow(layer(), layers="a", times=str(path)),
    "times": KernelTable.load,
    "trace": daydream.load,
}
BAD_FILES = Path(__file__).with_name("bad_files.tsv").read_text(encoding="utf-8").splitlines()[1:]


@pytest.mark.parametrize("row", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(tmp_path, row):
    reader, name, said, content = row.split("\t")
    content = re.sub("<([0-9]+) (.)>", lambda many: int(many[1]) * many[2], content)
    path = tmp_path / name
    path.write_bytes(content.encode().decode("unicode_escape").encode("latin-1"))
    with pytest.raises(DaydreamError) as error:
        READERS[reader](path)
    assert said in str(error.value)
    assert str(path) in str(error.value) or reader != "snapshot"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("reader", sorted({*READERS} - {"handles as JSON"}))
def test_a_file_that_is_not_there_is_named(tmp_path, reader):
    with pytest.raises(DaydreamError, match=r"none\.csv"):
        READERS[reader](tmp_path / "none.csv")


class Silent:
    def result(self):
        return {}


class Endless:
    def on_kernel(self, kernel):
        pass


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: settings_of("max_split_size_mb:1"), "max_split_size_mb is wrong: at least 20"),
        (lambda: settings_of("max_non_split_rounding_mb:1"), "max_non_split_rounding_mb is wrong: at least"),
        (lambda: settings_of("max_split_size_mb:large"), "max_split_size_mb:large is wrong"),
        (lambda: engine_of("spark"), "unknown engine 'spark'; choose local, processes"),
        (lambda: tool(Silent), "Silent has no callback, such as on_kernel"),
        (lambda: tool(Endless), "Endless has no result"),
        (lambda: daydream.Handle("m" * 100_000), "has 100,000 characters"),
        (lambda: join(daydream.DebugHandleMap({1: [HANDLE]}), graph().trace, "colour"),
         "unknown way to join handles, 'colour'; choose"),
        (lambda: join(daydream.DebugHandleMap({1: [HANDLE]}), graph().trace, "order", rows=[1, 1]),
         "a row is given twice"),
        (lambda: graph().trace.set_handles(daydream.DebugHandleMap({1: [HANDLE]}), np.zeros(2, np.int32)),
         "2 places were given for 6 rows"),
        (lambda: find_steps(None, None, "all"), "unknown way to find steps: 'all'"),
        (lambda: path_and_window("a.log@200-100"), "a window such as @100-200 begins with its first kernel"),
        (lambda: kernels_of_table(NCU.replace(",", ";"), "a.csv"), "fields are parted by semicolons"),
        (lambda: kernels_of_table(NCU + DECIMAL, "a.csv"),
         "has a decimal comma"),
        (lambda: kernels_of_table(NCU + MIXED, "a.csv"),
         "launch 0 has two kernels; several reports are mixed"),
        (lambda: known_devices()[0].peak("float8"), "has no float8 units; it has"),
        (lambda: nanoseconds(1e30), "is longer than can be counted in nanoseconds"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(ask, said):
    with pytest.raises(DaydreamError) as error:
        ask()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda graph: graph.select(kind=7), "kind is matched by text, not by"),
        (lambda graph: graph.select().where(lambda _: np.array([True])), "a test gives true or false for"),
        (lambda graph: cuda_graphs(graph, phase="optimizer", optimizer=False),
         "phase=optimizer captures the update, and optimizer=False leaves it out"),
        (lambda graph: metaflow(graph, layers="a", times="t.csv", factor=2), "give times alone"),
        (lambda graph: daydream.sweep([], "scale", {"factor": [1, 2]}), "a sweep needs a trace"),
    ],
)  # fmt: skip
def test_an_edit_that_cannot_be_is_refused(edit, said):
    with pytest.raises(DaydreamError) as error:
        edit(graph())
    assert said in str(error.value)


# What a change may not reach: work in replays, or of layers nobody knows; held starts. Times in us.


def one_step(*given, end):
    recorded = trace(*given, steps=(0, end))
    recorded.metadata["steps"][0]["covered"] = True
    return daydream.replay(daydream.build(recorded))


def decoding():
    #  thread 1  |kernel|graph|     stream 7  |own 10 to 40|a 41 to 101|b 102 to 162|
    return one_step(
        """
        launch own 0 10 40 phase=forward
        call cudaGraphLaunch 6 12 correlation=2
        kernel a 41 101 correlation=2 phase=forward
        kernel b 102 162 correlation=2 phase=forward
        op end 160 165
        """,
        end=165,
    )


def own_kernels_faster(graph):
    work = kernels(graph)
    (work - in_replays(work)).scale(0.5)


def test_what_runs_in_replays_is_said_where_a_change_leaves_it_out():
    answer = daydream.whatif(decoding(), own_kernels_faster)
    assert answer.left_out is not None
    assert (answer.left_out.left_ns, answer.left_out.device_ns) == (120_000, 150_000)
    assert "0.12 of 0.15 ms of device work per step run inside replays" in " ".join(answer.notes)
    assert answer.to_json()["left_in_replays_ns"] == 120_000
    # Twice as fast inside too, the step would be 60 us shorter: the range holds that.
    assert answer.uncertainty.unknown >= 60_000


def waiting(begin):
    #  another thread was at work before the recording: what it launches at `begin` ends the step
    return one_step(f"launch a 0 10 20\nlaunch b {begin} {begin + 10} {begin + 20} tid=2", end=begin + 20)


def test_a_step_that_waits_for_recorded_starts_says_how_much_of_it_cannot_move():
    answer = daydream.whatif(waiting(80), "scale", on="gpu", factor=0.5)
    assert answer.to_json()["held_ns"] == 80_000
    assert answer.held is not None
    assert answer.held.startswith("80% of the step cannot move")
    assert answer.held in likely_text(answer)
    assert answer.uncertainty.unknown == pytest.approx(min(80_000, answer.affected.together))


def model(call_of, *, unplaced):
    #  stream 7  |a 10 to 110, blocks.0|b, GPT|c 100, head|: a call runs a and b, and c is another's
    end = 110 + unplaced
    inside = {
        "op": f"""
            op CompiledFunction 0 20 layer=GPT
            launch a 1 10 110 layer=blocks.0
            launch b 7 110 {end} layer=GPT
        """,
        "graph": f"""
            call cudaGraphLaunch 1 12 correlation=1 layer=GPT
            kernel a 10 110 correlation=1 layer=blocks.0
            kernel b 110 {end} correlation=1 layer=GPT
        """,
    }
    own = f"op aten::relu 21 30 layer=head\nlaunch c 22 {end} {end + 100} layer=head"
    work = rows(inside[call_of] + own, phase="forward")
    return one_step(work, f"op end {end + 98} {end + 105}", end=end + 105)


def without_blocks(graph):
    graph.select().group_by(block="blocks.*").tasks.remove()


@pytest.mark.parametrize(("call_of", "what"), [("op", "compiled calls"), ("graph", "CUDA graphs")])
def test_layers_of_which_much_may_be_in_work_of_the_whole_model_are_no_answer(call_of, what):
    recorded = model(call_of, unplaced=60)
    for answer in (
        daydream.whatif(recorded, "scale", layer="blocks.*", factor=0.5),
        daydream.whatif(recorded, "add-layers", count=1, layers="blocks.*"),
        daydream.whatif(recorded, without_blocks),
    ):
        assert answer.predicted_ns is None
        assert f"0.06 of 0.26 ms of device work per step are known only as part of {what}" in answer.reason


def test_little_of_that_counts_as_unknown_by_how_much_the_layers_change():
    answer = daydream.whatif(model("op", unplaced=10), "scale", layer="blocks.*", factor=0.25)
    assert answer.reason is None
    assert answer.unplaced.unknown_ns == 0.75 * 10_000
    assert answer.uncertainty.unknown >= 7_500
