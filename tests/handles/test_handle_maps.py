"""Maps of debug handles: the builder's rules, shares, JSON, and the ways to join a map to a trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import daydream
from daydream import DebugHandleMap, DebugHandleMapBuilder, Handle
from daydream.errors import HandleError
from daydream.handles.nodes import handle_of, layer_path

ADD, RELU = Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3)


def test_identifiers_are_made_or_given() -> None:
    made = DebugHandleMapBuilder(generated_identifiers=True)
    assert [made.insert(handles=ADD), made.insert(handles=[ADD, RELU])] == [0, 1]
    assert made.build()[1] == (ADD, RELU)
    by_hand = DebugHandleMapBuilder()
    assert by_hand.insert(handles=[RELU], identifier="fused_0") == "fused_0"
    assert by_hand.build().identifiers == ["fused_0"]


@pytest.mark.parametrize(
    ("generated", "first", "second", "said"),
    [
        (True, {}, {"handles": ADD, "identifier": 3}, "makes its identifiers, and 3 was given"),
        (False, {}, {"handles": ADD}, "no identifier was given"),
        (False, {"handles": ADD, "identifier": 1}, {"handles": RELU, "identifier": 1}, "is there already"),
        (False, {"handles": ADD, "identifier": 1}, {"handles": RELU, "identifier": "a"}, "of another kind"),
        (False, {}, {"handles": ADD, "identifier": True}, "a whole number or a text was needed"),
        (False, {}, {"handles": ADD, "identifier": -1}, "out of range"),
        (False, {}, {"handles": ADD, "identifier": ""}, "a whole number or a text was needed"),
        (False, {}, {"handles": [], "identifier": 1}, "has no handles"),
        (False, {}, {"handles": ["add"], "identifier": 1}, "a Handle was needed"),
        (False, {}, {"identifier": 1}, "neither nodes nor handles"),
        (False, {}, {"handles": ADD, "nodes": [], "identifier": 1}, "both given"),
        (False, {}, {"nodes": ["n"], "identifier": 1}, "is no torch.fx.Node"),
    ],
)
def test_each_rule_of_the_builder(
    generated: bool, first: dict[str, object], second: dict[str, object], said: str
) -> None:
    builder = DebugHandleMapBuilder(generated_identifiers=generated)
    if first:
        builder.insert(**first)  # type: ignore[arg-type]
    before = len(builder.build())
    with pytest.raises(HandleError, match=said):
        builder.insert(**second)  # type: ignore[arg-type]
    assert len(builder.build()) == before


@pytest.mark.parametrize(
    ("rule", "weights", "shares"),
    [("flop", (1, 3), (0.25, 0.75)), ("equal", (1, 3), (0.5, 0.5)), ("bytes", (0, 3), (0.5, 0.5))],
)
def test_time_is_shared_by_weights_where_all_are_known(
    rule: str, weights: tuple[int, int], shares: tuple[float, float]
) -> None:
    handles = tuple(Handle("aten::add", weight=weight) for weight in weights)
    assert tuple(DebugHandleMap({0: handles}, rule=rule).shares(0)) == shares


def test_a_node_says_its_operator_layer_line_and_phase() -> None:
    stack = {"a": ("L['self']", object), "b": ("L['self']._modules['blocks']._modules['1'].fc2", object)}
    trace = 'File "/somewhere/model.py", line 12, in forward\n    return self.fc2(x)'
    node = SimpleNamespace(target="aten.addmm.default", meta={"nn_module_stack": stack, "stack_trace": trace})
    assert handle_of(node) == Handle("aten::addmm", "blocks.1.fc2", "model.py(12): forward")
    node.meta["partitioner_tag"] = "is_backward"
    assert handle_of(node).phase == "backward"


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("L['self'].blocks[1].fc2", "blocks.1.fc2"), ("_orig_mod.blocks.1.fc2", "blocks.1.fc2"),
        ("L['self']", ""), ("getattr(L['self'].layers, '0').mlp", "layers.0.mlp"),
    ],
)  # fmt: skip
def test_layer_paths_have_nothing_of_tracing_in_them(path: str, plain: str) -> None:
    assert layer_path(path) == plain


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
handles = st.builds(
    Handle, texts, layer=texts, source=texts, phase=st.sampled_from(["", "forward", "backward"]),
    weight=st.floats(0, 1e20),
)  # fmt: skip
entries = st.lists(handles, min_size=1, max_size=4)


@given(
    st.one_of(st.dictionaries(texts, entries), st.dictionaries(st.integers(0, 2**62), entries)),
    st.sampled_from(["flop", "bytes", "equal"]),
)
def test_a_map_is_the_same_after_json(given_entries: dict[str | int, list[Handle]], rule: str) -> None:
    made = DebugHandleMap(given_entries, rule=rule)
    assert DebugHandleMap.from_json(made.to_json()) == made
    for identifier in made:
        assert made.shares(identifier).sum() == pytest.approx(1)


@given(st.binary(max_size=200))
def test_what_is_no_map_is_refused(text: bytes) -> None:
    with pytest.raises(HandleError):
        DebugHandleMap.from_json(text)


def recorded(names: list[str], nodes: list[int] | None = None) -> daydream.Trace:
    """Two steps that run these kernels each."""
    several = names * 2
    count = len(several)
    columns = {
        "kind": np.zeros(count, np.int32),
        "name": np.array([sorted(set(names)).index(name) for name in several]),
        "start_ns": np.arange(count) * 10, "duration_ns": np.full(count, 10),
        "device": np.zeros(count, np.int32),
        "stream": np.full(count, 7), "step": np.repeat([0, 1], len(names)), "parent": np.full(count, -1),
    }  # fmt: skip
    if nodes is not None:
        columns["graph_node"] = np.array(nodes * 2)
        columns["graph_id"] = np.ones(count, np.int64)
    steps = [
        {
            "name": f"step {at}", "rank": 0, "start_ns": at * 10 * len(names),
            "end_ns": (at + 1) * 10 * len(names), "covered": False, "why_not": "made by hand",
        }
        for at in range(2)
    ]  # fmt: skip
    return daydream.Trace(columns, {"kind": ["kernel"], "name": sorted(set(names))}, {"steps": steps})


def test_a_map_is_joined_by_name_and_by_the_order_of_calls() -> None:
    found = {"b": (ADD,), "a:1": (ADD,), "a:2": (RELU,)}
    trace = recorded(["a", "b", "a", "c"]).attach_handles(DebugHandleMap(found))
    assert trace["handle"].tolist() == [1, 0, 2, -1] * 2
    assert trace.values("layer")[:4] == ["blocks.0", "blocks.0", "blocks.1", None]
    assert "6 of 8 rows, 75.0% of their time" in trace.metadata["notes"][0]


def test_calls_that_are_no_whole_number_of_rounds_stay_without() -> None:
    found = DebugHandleMap({"a:1": (ADD,), "a:2": (RELU,), "b": (ADD,)})
    assert recorded(["a", "a", "a", "b"]).attach_handles(found)["handle"].tolist() == [-1, -1, -1, 2] * 2


def test_a_map_is_joined_by_order_and_by_graph_node() -> None:
    found = DebugHandleMap({0: (ADD,), 1: (RELU,)})
    assert recorded(["a", "a"]).attach_handles(found, by="order")["handle"].tolist() == [0, 1, 0, 1]
    by_node = DebugHandleMap({40: (ADD,), 41: (RELU,)})
    trace = recorded(["a", "a", "a"], [41, 7, 40]).attach_handles(by_node, by="graph node id")
    assert trace["handle"].tolist() == [1, -1, 0] * 2


@pytest.mark.parametrize(
    ("by", "said"),
    [("name", "no row joins any of the 3"), ("order", "no step has a whole number of rounds"),
     ("graph node id", "no row has a graph node id"), ("luck", "unknown way")],
)  # fmt: skip
def test_a_map_of_another_program_is_refused(by: str, said: str) -> None:
    found = DebugHandleMap({"x": (ADD,), "y": (ADD,), "z": (ADD,)})
    trace = recorded(["a", "b"])
    with pytest.raises(HandleError, match=said):
        trace.attach_handles(found, by=by)
    assert trace.handles is None


def test_a_map_lies_in_the_trace_file_and_is_joined_once(tmp_path: Path) -> None:
    found = DebugHandleMap({"a": (ADD, RELU)}, rule="flop")
    trace = recorded(["a"]).attach_handles(found)
    trace.save(tmp_path / "t.parquet")
    again = daydream.load(tmp_path / "t.parquet")
    assert again.handles == found
    assert again["handle"].tolist() == [0, 0]
    with pytest.raises(HandleError, match="has debug handles already"):
        again.attach_handles(found)
