"""Functions that the compiler left as they are: what is kept of each, and what is said."""

from types import SimpleNamespace

import pytest

from daydream.collect.live import torch_compiler
from daydream.model.graph_breaks import uncompiled_sentences

CODE = SimpleNamespace(co_filename="/somewhere/train.py", co_firstlineno=9, co_name="forward")
FRAME = SimpleNamespace(
    filename="/somewhere/train.py", lineno=12, name="torch_dynamo_resume_in_forward_at_11"
)


@pytest.fixture
def kept(monkeypatch):
    found = {}
    monkeypatch.setattr(torch_compiler, "_uncompiled", found)
    return found


def said(**metadata):
    return uncompiled_sentences(SimpleNamespace(metadata=metadata))


def test_a_function_is_kept_once_with_its_reason_and_the_line_of_it(kept):
    error = SimpleNamespace(msg="Failed to trace\nmore", gb_type="graph break in loop", real_stack=[FRAME])
    for _ in range(2):
        torch_compiler._keep_uncompiled(error, CODE)
    assert torch_compiler.uncompiled_frames() == [
        {
            "source": "train.py(9): forward",
            "reason": "graph break in loop (Failed to trace)",
            "at": "train.py(12): forward",
        }
    ]
    (sentence,) = said(uncompiled_frames=torch_compiler.uncompiled_frames())
    assert sentence == (
        "train.py(9): forward was left uncompiled: graph break in loop (Failed to trace) at "
        "train.py(12): forward. What it calls is compiled by itself."
    )
