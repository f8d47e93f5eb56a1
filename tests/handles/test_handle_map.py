"""The map of debug handles: its builder's rules, its shares, its JSON."""

import json
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daydream import DebugHandleMap, DebugHandleMapBuilder, Handle, HandleError

ADD, RELU = Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3)


class Node:
    """What a node of torch.fx looks like."""

    target = "aten.addmm.default"
    meta: ClassVar = {
        "nn_module_stack": {"a": ("L['self']", "GPT"), "b": ("L['self']._orig_mod.blocks[1].fc2", "Linear")},
        "stack_trace": '  File "/somewhere/model.py", line 12, in forward\n    return self.fc2(x)',
    }


def test_nodes_say_operator_layer_and_source():
    builder = DebugHandleMapBuilder(generated_identifiers=True)
    key = builder.insert(nodes=Node())
    assert builder.build()[key] == (Handle("aten::addmm", "blocks.1.fc2", "model.py(12): forward"),)


@pytest.mark.parametrize(
    ("generated", "given", "said"),
    [
        (False, {"handles": [ADD]}, "no identifier was given"),
        (True, {"handles": [ADD], "identifier": 3}, "makes its identifiers"),
        (False, {"identifier": 3}, "neither nodes nor handles"),
        (False, {"nodes": Node(), "handles": [ADD], "identifier": 3}, "both given"),
        (False, {"handles": [ADD], "identifier": 7}, "there already"),
        (False, {"handles": [ADD], "identifier": "seven"}, "another kind"),
        (False, {"handles": [ADD], "identifier": -2}, "out of range"),
        (False, {"handles": ["add"], "identifier": 8}, "a Handle was needed"),
        (False, {"nodes": [object()], "identifier": 8}, "no torch.fx.Node"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(generated, given, said):
    builder = DebugHandleMapBuilder(generated_identifiers=generated)
    if not generated:
        builder.insert(handles=ADD, identifier=7)
    before = len(builder.build())
    with pytest.raises(HandleError, match=said):
        builder.insert(**given)
    assert len(builder.build()) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"operator": ""}, "no operator"),
        ({"operator": "a", "phase": "sideways"}, "choose"),
        ({"operator": "a", "weight": -1.0}, "0 or more"),
        ({"operator": "a", "weight": float("nan")}, "0 or more"),
        ({"operator": "a\ud800"}, "UTF-8"),
    ],
)
def test_a_handle_is_checked(fields, said):
    with pytest.raises(HandleError, match=said):
        Handle(**fields)


def test_time_is_shared_by_weight_and_equally_where_one_is_unknown():
    entries = {0: [ADD, RELU], 1: [ADD, Handle("aten::mul")]}
    by_bytes = DebugHandleMap(entries, rule="bytes")
    assert by_bytes.shares(0).tolist() == [0.25, 0.75]
    assert by_bytes.shares(1).tolist() == [0.5, 0.5]
    assert DebugHandleMap(entries).shares(0).tolist() == [0.5, 0.5]


def test_a_map_comes_back_from_json_equal():
    handles = DebugHandleMap({"k:1": [ADD, RELU], "k:2": [Handle("é", phase="backward")]}, rule="flop")
    assert DebugHandleMap.from_json(handles.to_json()) == handles
    assert handles != DebugHandleMap({"k:1": [ADD, RELU]}, rule="flop")


GOOD = {"format": "daydream.handles", "version": 1, "entries": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no map"),
        ("[" * 100_000, "no map"),
        (json.dumps({**GOOD, "version": 2}), "Upgrade"),
        (json.dumps({**GOOD, "rule": "luck"}), "no map"),
        (json.dumps({**GOOD, "entries": [{"identifier": 1, "handles": [{"operator": 1}]}]}), "no map"),
        (json.dumps({**GOOD, "entries": [{"identifier": 1, "handles": [{"operator": "a"}]}] * 2}), "twice"),
        (
            json.dumps(
                {**GOOD, "entries": [{"identifier": i, "handles": [{"operator": "a"}]} for i in (1, "b")]}
            ),
            "another kind",
        ),
    ],
)
def test_json_that_is_no_map_is_refused_in_one_line(text, said):
    with pytest.raises(HandleError, match=said) as caught:
        DebugHandleMap.from_json(text)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60))
def test_no_bytes_are_more_than_one_line(text):
    with pytest.raises(HandleError):
        DebugHandleMap.from_json(text)
