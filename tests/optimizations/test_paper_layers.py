"""Restructured batch normalization and MetaFlow: each answer worked out by hand."""

import json

import pytest
from daydream.optimizations._kernels import restructured_batchnorm
from daydream.optimizations._substitution import metaflow
from graph.small_graphs import kernels, named
from recorded import Program, does_not_apply, kernel_ns, makespan, refuses, thread_and_stream
from shared import shared_replay

import daydream
from daydream import GraphError, NotApplicableError, TraceError

# Batch normalization


def convolutional(*operators, backward=True, sequences=True, dtype="float32"):
    """Return a pass of convolutions 50, norms 30, activations 20, others 10; backward twice as long."""
    times = {"convolution": 50, "batch_norm": 30, "relu_": 20}
    nodes = {
        "convolution": "ConvolutionBackward0",
        "batch_norm": "NativeBatchNormBackward0",
        "relu_": "ReluBackward0",
    }
    program = Program()
    for number, name in enumerate(operators):
        kind = dtype if name == "add_" else "float32"
        program.op(f"aten::{name}", "forward", (f"{name} kernel", times.get(name, 10)), dtype=kind)
        if sequences:
            program.rows[-3]["sequence"] = number
    for number, name in reversed(list(enumerate(operators))) if backward else ():
        sequence = {"sequence": number} if sequences else {}
        with program.range(nodes.get(name, "AddBackward0"), "operator", phase="backward", **sequence):
            program.op(f"aten::{name}backward", "backward", (f"{name} grad", 2 * times.get(name, 10)))
    return program.graph()


def kernel_times(graph):
    work = kernels(graph)
    return {name: work.where(name=f"^{name}$").duration_ns.tolist() for name in sorted(set(work.name))}


def test_activations_go_and_norms_take_half():
    #  stream 7  2+4|conv 50|norm 30|relu 20|conv 50|grad 100|relu grad 40|norm grad 60|grad 100|
    #        ->  2+4|conv 50|norm 15|conv 50|grad 100|norm grad 30|grad 100|
    graph = convolutional("convolution", "batch_norm", "relu_", "convolution")
    assert makespan(graph) == 6 + 50 + 30 + 20 + 50 + 100 + 40 + 60 + 100
    restructured_batchnorm(graph)
    assert makespan(graph) == 6 + 50 + 15 + 50 + 100 + 30 + 100
    assert "relu_ kernel" not in kernel_times(graph)
    assert len(graph.select(kind="cpu", op="relu_")) == 0  # nor the CPU time of its operators
    assert graph.facts.notes[-1].startswith("1 of 1 batch")


def test_the_count_of_batches_does_not_part_a_chain_and_a_sum_does():
    graph = convolutional("convolution", "add_", "batch_norm", "relu_", backward=False, dtype="int64")
    restructured_batchnorm(graph)
    assert kernel_times(graph)["batch_norm kernel"] == [15]
    does_not_apply(
        "between a convolution and an activation",
        restructured_batchnorm,
        convolutional("convolution", "add_", "batch_norm", "relu_", backward=False),
    )


def test_without_sequence_numbers_only_the_forward_pass_changes():
    graph = convolutional("convolution", "batch_norm", "relu_", sequences=False)
    restructured_batchnorm(graph)
    times = kernel_times(graph)
    assert times["batch_norm kernel"] == [15]
    assert times["batch_norm grad"] == [60]
    assert times["relu_ grad"] == [40]
    assert "no sequence numbers" in graph.facts.notes[-1]


def test_traces_without_such_chains_are_refused():
    does_not_apply("no batch normalization", restructured_batchnorm, convolutional("convolution", "relu_"))
    does_not_apply("no operators", restructured_batchnorm, thread_and_stream("bn_fw 5 forward"))


def test_a_residual_network_restructures_the_norms_within_its_blocks():
    # ResNet-50 has 16 blocks of three convolutions, each but the last followed by norm and activation,
    # and one convolution before them: 33 of its 53 norms.
    replay = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz")
    found = daydream.whatif(replay, "restructured-batchnorm")
    assert any(note.startswith("99 of 159 batch") for note in found.notes)
    assert 1 < found.speedup < 1.2


# MetaFlow


def layered(*layers, on_cpu=False):
    """Return a step of layers `name=time,time`: a kernel each, and one of twice the time backward."""
    program = Program()
    told = [(layer.split("=")[0], [int(time) for time in layer.split("=")[1].split(",")]) for layer in layers]
    for phase, order, factor in (("forward", told, 1), ("backward", told[::-1], 2)):
        for layer, times in order:
            for number, time in enumerate(times):
                if on_cpu:
                    program.row(
                        "operator",
                        "aten::x",
                        program.now,
                        time * factor,
                        phase=phase,
                        op="aten::x",
                        layer=layer,
                    )
                    program.now += time * factor + 1
                else:
                    before = len(program.rows)
                    program.op(f"aten::op{number}", phase, (f"kernel {number}", time * factor))
                    for row in program.rows[before:]:
                        row["layer"] = layer
    return program.graph()


def forward_times(graph, phase="forward"):
    return kernel_ns(graph, phase=phase)


def test_missing_kernels_bring_launches():
    graph = layered("a=50", "b=7", "c=30,20,10")
    metaflow(graph, layers="a", like="c")
    assert forward_times(graph) == [30, 20, 10, 7, 30, 20, 10]
    assert len(named(graph, "launch")) == 4


def test_every_place_is_substituted_and_many_by_as_many():
    graph = layered("x.0.a=50", "x.0.b=9", "x.1.a=50", "x.1.b=9", "c=30")
    metaflow(graph, layers="x.*.a", like="c")
    assert forward_times(graph) == [30, 9, 30, 9, 30]
    graph = layered("x.0.a=50", "x.0.b=9", "x.1.a=50", "x.1.b=8")
    metaflow(graph, layers="x.*.a", like="x.*.b")
    assert forward_times(graph) == [9, 9, 8, 8]
    graph = layered("x.0.a=50", "b=1", "x.1.a=50", "b=2", "x.2.a=50", "c.0=8", "d=1", "c.1=9")
    refuses(r"in 3 places of a forward pass, 'c.\*' in 2", metaflow, graph, layers="x.*.a", like="c.*")


def test_a_factor_alone_is_the_same_kernels_for_other_sizes():
    graph = layered("a=50", "b=60")
    metaflow(graph, layers="a", factor=0.5)
    assert forward_times(graph) == [25, 60]


def test_a_table_names_layers_operators_and_kernels(tmp_path):
    # a forward 50 -> 25: backward 100 -> 50. The operator op1 of b: 10 -> 40 a call. The kernel of c 0: gone.
    table = tmp_path / "times.csv"
    table.write_text("name,us\na,0.025\naten::op1,0.04\nc,0\n")
    graph = layered("a=50", "b=60,10", "c=5")
    metaflow(graph, layers="*", times=str(table))
    assert forward_times(graph) == [25, 60, 40]
    assert forward_times(graph, "backward") == [120, 40, 50]
    table = tmp_path / "times.json"
    table.write_text(json.dumps({"kernel 1": 0.033}))
    graph = layered("a=50", "b=60,10")
    metaflow(graph, layers="b", times=str(table))
    assert forward_times(graph) == [50, 60, 33]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "layer,time\na,1\n", "it needs name and us"),
        ("t.csv", "name,us\na,soon\n", "needs microseconds"),
        ("t.csv", "name,us\n", "no times"),
        ("t.json", "[1]", "one JSON object"),
        ("t.json", "{", "not JSON"),
    ],
)
def test_tables_that_say_nothing_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words):
        metaflow(layered("a=50"), layers="a", times=str(tmp_path / name))


def test_options_that_make_no_sense_are_refused(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,us\nzzz,1\n")
    for options, error, words in (
        ({"layers": "a"}, GraphError, "say what"),
        ({"layers": "a", "like": "b", "times": str(table)}, GraphError, "times alone"),
        ({"layers": "a", "factor": -1.0}, GraphError, "0 or more"),
        ({"layers": "a", "like": "[ab]"}, GraphError, "in common"),
        ({"layers": "a", "like": "z"}, NotApplicableError, "forward work of layers 'z'"),
        ({"layers": "z", "like": "a"}, NotApplicableError, "work of layers 'z'"),
        ({"layers": "a", "times": str(table)}, GraphError, "no layer, operator or kernel 'zzz'"),
        ({"layers": "a", "times": str(tmp_path / "no.csv")}, TraceError, "no such file"),
    ):
        with pytest.raises(error, match=words):
            metaflow(layered("a=50", "b=60"), **options)


def test_on_a_cpu_operators_are_substituted():
    #  |a 50|1|a 10|1|c 30|1|  backward |c 60|1|a 100|1|a 20|1|  ->  |30|1|c 30|1|c 60|1|60|1|
    graph = layered("a=50,10", "c=30", on_cpu=True)
    before = makespan(graph)
    metaflow(graph, layers="a", like="c")
    assert graph.select(kind="cpu", layer="a").duration_ns.tolist() == [30, 60]
    assert before - makespan(graph) == (60 - 30 + 1) + (120 - 60 + 1)
