"""Phases and layers of host rows, and through them of device rows."""

from collections import Counter

import numpy as np
import pytest
from graph.small_traces import call, kernel, note, of_kinds, one, training

from daydream.collect.derive.by_parameter import cut_by_parameter

NODE = "autograd::engine::evaluate_function:"
MAIN, ENGINE, LOADER = 1, 2, 3


# -- phases --------------------------------------------------------------------------------------------


def test_phases_of_a_training_step(imported):
    trace = imported(training(3))
    found = {name: phase for name, (phase,) in of_kinds(trace, "phase", "operator", "annotation").items()}
    assert found == {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "data", "ProfilerStep#0": None,
        "aten::linear": "forward", "aten::addmm": "forward", "aten::mse_loss": "loss",
        f"{NODE} MseLossBackward0": "backward", "MseLossBackward0": "backward",
        f"{NODE} AddmmBackward0": "backward", f"{NODE} torch::autograd::AccumulateGrad": "backward",
        "Optimizer.step#SGD.step": "optimizer", "aten::add_": "optimizer", "aten::item": "other",
        "ProfilerStep#1": None, "ProfilerStep#2": None,
    }  # fmt: skip
    assert of_kinds(trace, "phase", "kernel") == {
        "ampere_sgemm_32x32_tn": {"forward"}, "reduce_kernel<float>": {"loss"},
        "mse_backward<float>": {"backward"}, "ampere_sgemm_32x32_nt": {"backward"},
        "multi_tensor_apply<float>": {"optimizer"},
    }  # fmt: skip


CASES = {  # rows, and phases of operators, calls and kernels
    "accumulated gradients have several forward passes": (
        f"""
        op aten::mul 10 30 Sequence_number=1
        op aten::silu 40 60
        op {NODE} MulBackward0 100 150 tid=2 Sequence_number=1 Fwd_thread_id=1
        op aten::mul 310 330 Sequence_number=2
        op aten::silu 340 360
        op {NODE} MulBackward0 400 450 tid=2 Sequence_number=2 Fwd_thread_id=1
        op aten::clip 500 520
        note Optimizer.step#SGD.step 600 650
        op aten::item 700 705
        """,
        {"forward": "aten::mul aten::silu", "other": "aten::clip aten::item"},
    ),
    "old names of autograd nodes": (
        """
        op aten::relu 0 10
        op ReluBackward1 50 70 tid=2
        op aten::threshold_backward 55 65 tid=2
        call cudaEventQuery 95 96 tid=2
        """,
        {
            "forward": "aten::relu",
            "backward": "ReluBackward1 aten::threshold_backward cudaEventQuery",
        },
    ),
    "named ranges where nothing better is known": (
        """
        note ## Forward ## 0 90
        launch a 10 20 25
        note ## BACKWARD ## 100 190
        launch b 110 120 125
        note Optimizer step 200 290
        launch c 210 220 225
        """,
        {"forward": "a", "backward": "b", "optimizer": "c"},
    ),
    "device work without a launch: by its name": (
        """
        launch gemm 0 10 15
        kernel norm_backward 20 25 correlation=77
        kernel FusedAdam 30 35 correlation=78
        kernel other 40 45 correlation=79
        """,
        {"forward": "gemm", "backward": "norm_backward", "optimizer": "FusedAdam", None: "other"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_phases(imported, case):
    text, expected = CASES[case]
    found = of_kinds(imported(text), "phase", "operator", "runtime", "kernel")
    for phase, names in expected.items():
        assert {name: found[name] for name in names.split()} == {name: {phase} for name in names.split()}


# -- layers --------------------------------------------------------------------------------------------


def test_layers_come_from_module_frames_and_reach_the_backward(imported):
    trace = imported(training(1), "module Net_0 95 175\nmodule Linear_0 98 158")
    for name in ("ampere_sgemm_32x32_tn", "ampere_sgemm_32x32_nt", f"{NODE} torch::autograd::AccumulateGrad"):
        assert one(trace, "layer", name) == "Net_0.Linear_0"
    assert one(trace, "layer", "aten::mse_loss") is None


LAYERS = {  # rows, and the layers of those of a name
    "ranges with a whole path": (
        "op nn.Module: encoder 0 100\nnote nn.Module: encoder.layers.0 10 90\nop a 20 30",
        ["encoder.layers.0"],
    ),
    "a backward node is of the last forward operator with its number": (
        """
        module A_0 0 15
        op aten::mul 2 7 Sequence_number=7
        module B_0 20 35
        op aten::detach 22 27 Sequence_number=7
        op a 50 60 tid=2 Sequence_number=7 Fwd_thread_id=1
        module C_0 70 85
        op aten::later 72 77 Sequence_number=7
        """,
        ["B_0"],
    ),
    "forward threads keep their numbers apart": (
        """
        module Main_0 0 9
        op main 1 6 Sequence_number=0
        module Other_0 0 9 tid=3
        op other 1 6 tid=3 Sequence_number=1
        module Main_1 10 19
        op main 11 16 Sequence_number=1
        module Other_1 10 19 tid=3
        op other 11 16 tid=3 Sequence_number=2
        op a 100 105 tid=2 Sequence_number=0 Fwd_thread_id=1
        op a 110 115 tid=2 Sequence_number=2 Fwd_thread_id=2
        """,
        ["Main_0", "Other_1"],
    ),
    "a module that is run again outside its parents": (
        """
        module Net_0 0 50
        module Block_0 5 45
        module Conv2d_0 10 30
        op a 12 17
        module Block_0 105 145 tid=2
        module Conv2d_0 110 130 tid=2
        op a 112 117 tid=2
        """,
        ["Net_0.Block_0.Conv2d_0"] * 2,
    ),
    "an argument names it": (
        "op a 0 50 Module_Hierarchy=Net.fc1\nop aten::addmm 10 30 Module_Hierarchy=",
        ["Net.fc1"],
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(imported, case):
    text, expected = LAYERS[case]
    trace = imported(text)
    assert [
        layer for name, layer in zip(trace.values("name"), trace.values("layer"), strict=True) if name == "a"
    ] == (expected)


ADD, MUL, SQRT, STEP = range(4)


def test_operators_are_cut_by_parameter_where_they_fit():
    names = [STEP, MUL, ADD] * 3
    shapes = ["[]", "[4]", "[4]", "[]", "[4]", "[4]", "[]", "[2,4]", "[2,4]"]
    assert cut_by_parameter(names, shapes, [["[4]", "[4]", "[2,4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for names, shapes, parameters in (
        ([ADD, MUL, SQRT], ["[4]", "[4]", "[2]"], [["[4]", "[2]"]]),
        ([STEP, MUL, SQRT, STEP, ADD], ["[]", "[2,4]", "[2,1]", "[]", "[4]"], [["[2,4]", "[4]"]]),
        ([ADD, ADD], ["[4]", "[2]"], [["[4]", "[8]"]]),
        ([ADD], ["[4]"], [["[4]", "[4]"]]),
        ([ADD], ["[4]"], []),
    ):
        assert cut_by_parameter(names, shapes, parameters) == []


# -- without operators, by threads and names of kernels ------------------------------------------------

FORWARD = [(MAIN, "gemm"), (MAIN, "relu"), (MAIN, "gemm")]
BACKWARD = [(ENGINE, "gemm")] * 4
LISTS = "multi_tensor_apply_kernel<Lists>"
UPDATE = [(MAIN, LISTS), (MAIN, "fill"), (MAIN, "multi_tensor_apply_kernel")]
DGRAD = [(MAIN, "implicit_gemm_dgrad"), (MAIN, "relu"), (MAIN, "implicit_gemm_dgrad")]
ADAM = [(MAIN, "multi_tensor_apply_kernel<FusedAdamFunctor>")]
ONE_THREAD = ["gemm", "relu", "gemm", "relu_backward", "gemm", "conv_wgrad", "igemm_wrw"]
TOLD = {  # what is launched, ranges around launches of the main thread, and the phases: f, b, u, other
    "a thread that the update follows is the engine": ([*FORWARD, *BACKWARD, *UPDATE], {}, "fffbbbbuuu"),
    "one that runs in ranges named backward is": (
        [*FORWARD, *BACKWARD, (MAIN, "add")], {"Forward": (0, 2), "Backward": (3, 6)}, "fffbbbbo",
    ),
    "transposed convolutions on the calling thread are forward": (
        [*DGRAD, *BACKWARD, *UPDATE], {}, "fffbbbbuuu",
    ),
    "one thread by names of kernels": (
        [*zip([MAIN] * 7, ONE_THREAD, strict=True), *UPDATE], {}, "fffbbbbuuu",
    ),
    "the program's own range counts for more than lists": (
        [*FORWARD, *BACKWARD, *UPDATE], {"forward": (0, 2), "backward": (3, 9)}, "fffbbbbbbb",
    ),
    "not more than Adam": ([*FORWARD, *BACKWARD, *ADAM], {"forward": (0, 2), "backward": (3, 7)}, "fffbbbbu"),
}  # fmt: skip


def told(imported, work, ranges=None):
    """Return the phases in a step of launches, 20 us apart, by their first letters."""
    events = []
    for step in range(4):
        at = 1000 * step
        events.append(note(f"step {step}", at, at + 990))
        for name, (first, last) in (ranges or {}).items():
            events.append(note(name, at + 20 * first + 5, at + 20 * last + 23))
        for place, (thread, name) in enumerate(work):
            number, begin = 100 * step + place + 1, at + 20 * place + 10
            events.append(call("cudaLaunchKernel", begin, begin + 5, number, tid=thread))
            events.append(kernel(name, begin + 10, begin + 20, number))
    trace = imported(events)
    rows = np.flatnonzero(trace.is_kind("kernel") & (trace["step"] == 2))
    return "".join("u" if phase == "optimizer" else str(phase)[0] for phase in trace.values("phase", rows))


@pytest.mark.parametrize("case", TOLD)
def test_threads_and_names_of_kernels_tell_phases(imported, case):
    work, ranges, expected = TOLD[case]
    assert told(imported, work, ranges) == expected


def test_a_loader_that_launches_is_no_engine(imported):
    found = told(imported, [*FORWARD, *BACKWARD, *UPDATE, (LOADER, "flip"), (LOADER, "flip")])
    assert (found[:10], found[10:] == "bb") == ("fffbbbbuuu", False)
    assert Counter(told(imported, DGRAD)) == {"f": 3}
