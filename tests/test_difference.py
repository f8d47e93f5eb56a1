"""Two steps side by side: traces small enough to add up by hand, laws for any work, public pairs."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from graph.small_traces import launched, op, trace
from hypothesis import given
from hypothesis import strategies as st
from shared import shared_trace
from view_text import view_text

import daydream
from daydream.cli import main
from daydream.predict.compare import ROWS, Work, changes_by

US = 1_000
STEPS = (0, 100, 200, 300)


def step(at, *kernels, layer="fc", operator="aten::mm"):
    """One operator that launches kernels of (name, us), one after the other."""
    rows, start = [op(operator, at, at + 40, op=operator, layer=layer)], at + 10
    for number, (name, time) in enumerate(kernels):
        there = {"op": operator, "layer": layer}
        rows += launched(name, at + 6 * number + 1, start, start + time, **there)
        start += time + 1
    return rows


def one_step(*kernels, **how):
    """A trace of two steps, of which the first does not count."""
    return trace(step(0), step(100, *kernels, **how), steps=(0, 100, 200))


def of(parts):
    return {(each.before, each.after): each for each in parts}


def figures(change):
    return change.before_count, change.after_count, change.before_ns / US, change.after_ns / US


def test_counts_and_times_are_means_over_the_covered_steps():
    #                step 0 does not count    step 1                              step 2
    before = trace(
        step(0, ("gemm", 9)), step(100, ("gemm", 4), ("gemm", 6)), step(200, ("gemm", 2)), steps=STEPS
    )
    after = trace(step(0), step(100, ("gemm", 5)), step(200, ("gemm", 7)), steps=STEPS)

    (kernel,) = daydream.compare(before, after).kernels
    assert figures(kernel) == ((2 + 1) / 2, 1, (4 + 6 + 2) / 2, (5 + 7) / 2)
    assert (kernel.change_ns, kernel.state) == (0, "changed")  # as much time, but not as often


def test_a_kernel_of_another_name_in_the_same_layer_and_operator_has_replaced_it():
    before = one_step(("gemm32", 20), ("gemm32", 10), ("relu", 3))
    after = one_step(("gemm16", 8), ("relu", 3), ("cast", 1))

    first, second = daydream.compare(before, after).kernels
    assert (first.before, first.after, first.state) == (("gemm32",), ("gemm16", "cast"), "replaced")
    assert figures(first) == (2, 2, 30, 9)
    assert (second.before, second.after, second.state) == (("relu",), ("relu",), "same")


def test_what_is_new_or_vanished_is_named():
    before = trace(
        step(0),
        step(100, ("gemm", 20)),
        step(150, ("pad", 5), layer="head", operator="aten::pad"),
        steps=(0, 100, 200),
    )
    after = trace(
        step(0),
        step(100, ("gemm", 20)),
        step(150, ("sort", 7), layer="tail", operator="aten::sort"),
        steps=(0, 100, 200),
    )

    found = daydream.compare(before, after)
    assert [each.before for each in found.vanished] == [("pad",)]
    assert [each.after for each in found.new] == [("sort",)]
    text = view_text(found)
    assert "new: sort" in text
    assert "vanished: pad" in text


def test_what_else_is_different_is_said():
    gpu = trace(
        step(0), step(100, ("gemm", 20)), steps=(0, 100, 200), versions={"torch": "2.4"}, world_size=1
    )
    cpu = trace(
        op("aten::mm", 0, 40, op="aten::mm"), op("aten::mm", 100, 160, op="aten::mm"), steps=(0, 100, 200),
        versions={"torch": "2.5"}, world_size=8,
    )  # fmt: skip
    notes = " ".join(daydream.compare(gpu, cpu, names=("gpu", "cpu")).notes)

    assert "The work of gpu is that of its GPU, of cpu that of the CPU" in notes
    assert "torch 2.4 and 2.5" in notes
    assert "The size of the job is 1 and 8." in notes
    assert "Only one of the two knows layers; cpu" in notes
    assert "gpu and cpu cover a single step" in notes


def test_a_trace_is_not_different_from_itself():
    same = one_step(("gemm", 20), ("relu", 3))
    found = daydream.compare(same, same, names=("t", "t"))

    assert found.change_ns == 0
    assert {
        each.state for part in (found.layers, found.operators, found.kernels, found.cpu) for each in part
    } == {"same"}
    assert [found.before.name, found.after.name] == ["t (before)", "t (after)"]


def test_the_table_holds_every_part():
    pytest.importorskip("pandas")
    found = daydream.compare(one_step(("gemm32", 20)), one_step(("gemm16", 5)))
    table = found.to_pandas()

    assert set(table["part"]) == {"phase", "cause", "layer", "operator", "kernel", "cpu"}
    (kernel,) = table[table["part"] == "kernel"].to_dict("records")
    assert (kernel["name"], kernel["state"], kernel["change_ns"]) == (
        "gemm32 -> gemm16",
        "replaced",
        -15 * US,
    )


# Laws -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([None, "a", "b", "c"])
NAMED = st.sampled_from(["x", "y", "z"])
WORK = st.lists(st.builds(Work, NAMES, NAMES, NAMED, st.integers(1, 9), st.integers(0, 10**6)))


@given(WORK, WORK)
def test_nothing_is_lost_and_nothing_counts_twice(before, after):
    for what in ROWS:
        found = changes_by(what, before, after)
        assert sum(each.before_ns for each in found) == sum(each.ns for each in before)
        assert sum(each.after_ns for each in found) == sum(each.ns for each in after)
        assert sum(each.before_count for each in found) == sum(each.runs for each in before)
        assert sum(each.after_count for each in found) == sum(each.runs for each in after)


@given(WORK, WORK)
def test_the_other_way_round_every_change_is_the_opposite(before, after):
    for what in ROWS:
        there, back = Counter(), Counter()
        for each in changes_by(what, before, after):
            there[frozenset(each.before), frozenset(each.after)] += each.change_ns
        for each in changes_by(what, after, before):
            back[frozenset(each.after), frozenset(each.before)] -= each.change_ns
        assert dict(there) == dict(back)


# Public pairs -----------------------------------------------------------------------------------------


def compared(before, after):
    return daydream.compare(shared_trace(f"kineto/{before}.json.gz"), shared_trace(f"kineto/{after}.json.gz"))


def test_the_page_shows_what_is_printed(monkeypatch, capsys):
    page = (Path(__file__).parent.parent / "docs" / "compare.md").read_text()
    (block,) = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    command, shown = block.split("\n", 1)
    words = shlex.split(command.removeprefix("$ daydream "))
    monkeypatch.chdir(shared_trace(f"kineto/{words[1]}").parent)
    with pytest.raises(SystemExit):
        main(words)

    assert shown.endswith("\n...\n")
    assert capsys.readouterr().out.startswith(shown.removesuffix("...\n"))
