"""Which function called what, from the Python frames of a recording: `stack`."""

import numpy as np
import pytest
from kineto_text import call, kernel, op, row, training
from test_kineto import imported
from view_text import view_text

import daydream
from daydream.collect.derive.source_lines import SourceLines, own_frame


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        ("train.py(12): step", "train.py(12): step"),
        ("/data/somebody/net/train.py(12): step", "net/train.py(12): step"),
        ("C:\\somebody\\net\\train.py(12): step", "net/train.py(12): step"),
        (
            "/usr/local/lib/python3.11/site-packages/transformers/trainer.py(9): f",
            "transformers/trainer.py(9): f",
        ),
        ("train.py(184): <module>", "train.py(184): <module>"),
        ("torch/nn/modules/module.py(1553): _call_impl", None),
        ("/usr/local/lib/python3.11/site-packages/torch/optim/adam.py(3): step", None),
        ("/src/pytorch/torch/optim/adam.py(3): step", None),
        ("/src/daydream/collect/live/session.py(3): mark", None),
        ("/usr/lib/python3.11/contextlib.py(3): inner", None),
        ("threading.py(1032): _bootstrap", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<string>(2): __init__", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_a_frame_is_kept_if_it_is_someones_own_and_without_the_way_to_it(frame, kept):
    assert own_frame(frame) == kept


def test_the_innermost_frame_of_the_same_thread_counts():
    #  thread 1  |main                         |      |later|
    #               |step           |
    #                |torch|   |log|
    lines = SourceLines()
    names = ["a.py(1): main", "a.py(5): step", "torch/a.py(7): f", "a.py(9): log", "a.py(2): later"]
    start, duration = np.array([0, 10, 12, 30, 200]), np.array([100, 40, 8, 10, 10])
    lines.add(names, start, duration, np.full(5, 1))
    lines.add(["b.py(1): worker"], np.array([0]), np.array([300]), np.array([2]))

    at = np.array([5, 13, 30, 45, 60, 150, 205, 13, 13])
    thread = np.array([1, 1, 1, 1, 1, 1, 1, 2, 3])
    found = [lines.texts[code] if code >= 0 else None for code in lines.of(at, thread).tolist()]
    assert found == [
        "a.py(1): main", "a.py(5): step", "a.py(9): log", "a.py(5): step", "a.py(1): main", None,
        "a.py(2): later", "b.py(1): worker", None,
    ]  # fmt: skip


def synchronizing(steps):
    events = training(steps)
    for step in range(steps):
        at = 1000 * step
        events += [
            row("python_function", "/home/secret/net/train.py(41): train_step", at + 60, 900),
            row("python_function", "/home/secret/net/train.py(12): log_loss", at + 790, 160),
            row("python_function", "torch/_tensor.py(3): item", at + 791, 158),
            op("aten::_local_scalar_dense", at + 792, 150, External_id=900 + step),
            call("cudaLaunchKernel", at + 794, 4, 9000 + 2 * step, External_id=900 + step),
            kernel("slow", at + 804, 120, 9000 + 2 * step, External_id=900 + step),
            call("cudaDeviceSynchronize", at + 800, 126, 9001 + 2 * step, External_id=900 + step),
        ]
    return events


def test_an_import_says_which_function_called_and_nothing_of_the_machine(tmp_path):
    trace = imported(tmp_path, synchronizing(3))
    stack, names = trace.values("stack"), trace.values("name")

    waits = {stack[row] for row, name in enumerate(names) if name == "cudaDeviceSynchronize"}
    assert waits == {"net/train.py(12): log_loss"}
    assert stack[names.index("aten::linear")] == "net/train.py(41): train_step"
    assert stack[names.index("slow")] is None
    assert not [name for name in names if ".py" in str(name)]
    assert not [text for text in trace.text("stack") if "secret" in text]


def test_explain_names_the_line_of_a_synchronization(tmp_path):
    explanation = daydream.explain(imported(tmp_path, synchronizing(6)))
    (cost,) = [each for each in explanation.avoidable if each.sort == "synchronization"]

    assert cost.source == "net/train.py(12): log_loss"
    assert "net/train.py(12): log_loss" in " ".join(view_text(explanation, verbose=True).split())
