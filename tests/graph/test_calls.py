"""Whose call a task belongs to: instances, `within`, operators, shapes, gradients."""

import numpy as np
import pytest
from small_graphs import kernels, names, put, thread
from small_traces import kernel, launched, note, trace
from small_traces import op as operator

from daydream import Graph, NoMatchError, NotApplicableError, build
from daydream.graph.calls import Coverage, in_replays, mostly_replayed, whole_calls


def op(name, start, end, **columns):
    return operator(name, start, end, op=name, **columns)


def normed(steps=1):
    #  thread 1  |layer_norm 0..40: |native 5..35: |launch n1||empty 3||launch n2|||mul 40..50: |launch m|
    #  The stream runs n1, n2, m; a note stands around all of it.
    rows = []
    for step in range(steps):
        at = 100 * step
        rows += [
            note("block", at, at + 60, layer="blocks.0"),
            op("aten::layer_norm", at, at + 40, shapes="[[8,16],[16]]"),
            op("aten::native_layer_norm", at + 5, at + 35),
            launched("n1", at + 6, at + 14, at + 16),
            op("aten::empty", at + 12, at + 15, shapes="[[],[]]"),
            launched("n2", at + 20, at + 28, at + 30),
            op("aten::mul", at + 40, at + 50, shapes="[[8,16],[[4],[2,2]]]"),
            launched("m", at + 42, at + 50, at + 54),
        ]
    return trace(rows, steps=tuple(100.0 * step for step in range(steps + 1)))


def with_autograd_thread():
    #  main     |forward: |linear: f||  |## backward ## ........||step: u|
    #  autograd                           |mm: b1||mm: b2|
    #  loader              |copy: h|          |copy: h|
    return trace(
        [
            """
                note forward 0 20 phase=forward
                op aten::linear 2 18 phase=forward
                launch f 5 12 20 phase=forward
                note ## backward ## 25 70 phase=backward
                note start 26 30 phase=backward
                op aten::mm 30 45 tid=2 phase=backward
                launch b1 32 40 50 tid=2 phase=backward
                op aten::mm 48 60 tid=2 phase=backward
                launch b2 50 58 64 tid=2 phase=backward
                launch h 40 66 67 tid=3 phase=data
                op step 72 90 phase=optimizer
                launch u 74 82 90 phase=optimizer
            """,
        ],
        steps=(0, 100),
    )


def test_a_range_that_waits_for_the_autograd_thread_holds_its_work():
    graph = build(with_autograd_thread())

    assert names(kernels(graph).where(within="backward")) == "b1, b2"
    assert names(kernels(graph).where(within="forward")) == "f"
    assert len(kernels(graph).where(within="start")) == 0  # it is over when the thread begins
    assert [each.name.tolist() for each in kernels(graph).group_by(within="## backward")] == [["b1", "b2"]]
    assert [each.name.tolist() for each in kernels(graph).group_by("instance")] == [
        ["f"],
        ["b1"],
        ["b2"],
        ["u"],
    ]


def test_the_thread_that_waits_is_known_whatever_code_its_phase_has():
    recorded = trace(
        """
            note forward 0 20 phase=forward
            note call 25 70 phase=forward
            op aten::mm 30 45 tid=2 phase=backward
            launch b 32 40 50 tid=2 phase=backward
            op copy 40 42 tid=3 phase=data
        """,
        steps=(0, 100),
    )
    recorded.texts["phase"] = ["forward", "backward", "data"]
    recorded.columns["phase"] = np.array([-1, 1, 2, 0])[recorded["phase"] + 1]

    assert names(kernels(build(recorded)).where(within="call")) == "b"


IDLE = "op idle 0 1 tid=3\n" * 3
OTHER = "note forward 0 1 tid=5 rank=1 phase=forward\n" * 3


@pytest.mark.parametrize(
    ("phase", "more", "found"),
    [("phase=forward", IDLE, "b"), ("phase=forward", OTHER, "b"), ("", "", "b"), ("phase=forward", "", "")],
)
def test_the_thread_that_waits_runs_most_of_the_other_phases_of_its_rank(phase, more, found):
    recorded = trace(
        f"""
            note call 25 {70 if found else 28} {phase}
            op aten::mm 30 45 tid=2 phase=backward
            launch b 32 40 50 tid=2 phase=backward
        """,
        more,
    )
    assert names(kernels(build(recorded)).where(within="call")) == found


def test_within_sees_every_enclosing_call_and_range():
    graph = build(normed())

    assert names(kernels(graph).where(within="^aten::layer_norm$")) == "n1, n2"
    assert names(kernels(graph).where(within=("native", "mul"))) == "n1, n2, m"
    assert len(kernels(graph).where(within="block")) == 3
    assert set(graph.select(kind="cpu", within="native").op) >= {"aten::empty"}
    assert len(graph.select(within="nothing of this name")) == 0
    groups = kernels(graph).group_by(within="layer_norm")
    assert [each.name.tolist() for each in groups] == [["n1", "n2"]]
    assert kernels(graph).group_by("phase", within="mul").sizes.tolist() == []


def test_the_operators_of_removed_work_are_those_that_did_nothing_else():
    #  n1 alone: native_layer_norm also launched n2. Both: the whole of layer_norm, empty too. mul stays.
    graph = build(normed())
    by_name = {name: graph.select(name=f"^{name}$") for name in ("n1", "n2", "m")}
    with_both = (by_name["n1"] | by_name["n2"]).operators()

    assert len(by_name["n1"].operators()) == 0
    assert set(with_both.op) - {None} == {"aten::layer_norm", "aten::native_layer_norm", "aten::empty"}
    assert with_both.total("duration_ns") == 40_000
    assert set(kernels(graph).operators().op) == set(with_both.op) | {"aten::mul"}


def test_shapes_come_from_the_call_that_recorded_them():
    graph = build(normed())

    assert kernels(graph).shapes.tolist() == ["[[8,16],[16]]"] * 2 + ["[[8,16],[[4],[2,2]]]"]
    assert kernels(graph).input_elements.tolist() == [144, 144, 136]
    assert names(kernels(graph).where(shapes=r"\[16\]")) == "n1, n2"
    kernels(graph).head(1).set(shapes="[[2]]")
    assert kernels(graph).input_elements.tolist() == [2, 144, 136]
    assert Graph().select().input_elements.tolist() == []


# -- layers and gradients ----------------------------------------------------------------------------


def backward(*, shapes=True, layers=True, **metadata):
    #  forward of the layers a, b; backward of b (kernels b1, b2), its AccumulateGrad twice, then a
    def accumulate(at, shape, layer):
        columns = {"phase": "backward", "layer": layer if layers else None}
        if shapes:
            columns |= {"shapes": f"[[{shape}]]", "dtype": "float32"}
        return [op("torch::autograd::AccumulateGrad", at, at + 2, **columns)]

    def layer(name, at, phase, *kernels):
        own = {"phase": phase, "layer": name if layers else None}
        rows = [op(f"{phase} {name}", at, at + 10 * len(kernels), **own)]
        for place, work in enumerate(kernels):
            begin = at + 10 * place
            rows += launched(work, begin + 1, begin + 8, begin + 9, **own)
        return rows

    return trace(
        layer("a", 0, "forward", "fa"),
        layer("b", 10, "forward", "fb"),
        layer("b", 20, "backward", "b1", "b2"),
        accumulate(40, "8", "b"),
        accumulate(42, "8,16", "b"),
        layer("a", 44, "backward", "a1"),
        accumulate(54, "4,4", "a"),
        steps=(0, 100),
        **metadata,
    )


PARAMETERS = [
    {"name": "a.weight", "layer": "a", "gradient_bytes": 64},
    {"name": "b.weight", "layer": "b", "gradient_bytes": 512},
    {"name": "b.bias", "layer": "b", "gradient_bytes": 32},
    {"name": "c.frozen", "layer": "c", "gradient_bytes": 0},
]


@pytest.mark.parametrize(
    "recorded",
    [
        backward(),
        backward(layers=False),
        backward(shapes=False, parameters=PARAMETERS),
        backward(parameters=PARAMETERS),
    ],
)
def test_a_gradient_is_complete_with_the_last_work_launched_before_it_is_accumulated(recorded):
    graph = build(recorded)
    tasks = kernels(graph)

    assert dict(zip(tasks.name.tolist(), tasks.grad_bytes.tolist(), strict=True)) == {
        "fa": 0, "fb": 0, "b1": 0, "b2": 32 + 512, "a1": 64,
    }  # fmt: skip
    assert graph.select(kind="cpu").total("grad_bytes") == 0
    buckets = graph.select(phase="backward", kind="kernel").runs(600, of="grad_bytes")
    assert [each.name.tolist() for each in buckets] == [["b1", "b2", "a1"]]
    tasks.where(name="b2").remove()
    assert graph.select(name="b1").grad_bytes.tolist() == [32 + 512]


def test_on_a_cpu_the_node_itself_completes_the_gradient():
    graph = build(
        trace(
            op("backward b", 0, 10, phase="backward"),
            op("torch::autograd::AccumulateGrad", 10, 20, phase="backward", shapes="[[8]]", dtype="bfloat16"),
            op("aten::detach", 12, 14, phase="backward"),
        )
    )
    assert graph.select().grad_bytes.tolist() == [0, 0, 0, 16]


def test_layers_are_numbered_as_they_first_run_forward():
    graph = build(backward())
    tasks = kernels(graph)

    assert dict(zip(tasks.name.tolist(), tasks.layer_index.tolist(), strict=True)) == {
        "fa": 0, "fb": 1, "b1": 1, "b2": 1, "a1": 0,
    }  # fmt: skip
    with pytest.raises(NotApplicableError, match="no layers; record it with `daydream collect`"):
        _ = kernels(build(backward(layers=False))).layer_index
    assert issubclass(NotApplicableError, NoMatchError)


def blocking():
    #  thread 1  |launch k 5|cudaMemcpy: call, then blocked until 120, return|launch after|
    copy = {"kind": "memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
    graph = build(
        trace(
            """
                launch k 0 10 20
                call cudaMemcpy 10 130 correlation=2
            """,
            kernel(copy["name"], 20, 120, 2, kind=copy["kind"]),
            launched("after", 130, 140, 145),
        )
    )
    assert len(graph.select(name="cudaMemcpy")) == 2
    return graph


def test_a_blocking_call_is_removed_whole():
    graph = blocking()
    graph.select(kind="memcpy").remove()

    assert set(graph.select(kind="cpu").name) == {"cudaLaunchKernel"}
    assert graph.lint() == []


def test_spans_that_overlap_cover_one_piece():
    #  0..2 | 3..6 and 4..7 | 20..20 | 21..25
    covered = Coverage(np.array([4, 0, 20, 3, 21]), np.array([7, 2, 20, 6, 25]))

    assert covered.start_ns.tolist() == [0, 3, 21]
    assert covered.end_ns.tolist() == [2, 7, 25]
    assert covered.before_ns.tolist() == [0, 2, 6, 10]
    assert covered.within(np.array([1, 5, 8]), np.array([5, 24, 20])).tolist() == [3, 5, 0]


# -- replays and compiled calls ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "outside", "mostly"),
    [([1, 1], [9], True), ([9], [1, 1], True), ([4], [3, 3], False), ([5], [5], False)],
)
def test_work_is_mostly_replayed_by_number_or_by_time(inside, outside, mostly):
    graph = thread("cudaGraphLaunch 5")
    for place, duration in enumerate(inside + outside):
        task = put(graph, "in" if place < len(inside) else "out", "stream 7", duration)
        graph.write("launch", task.ids, 0 if place < len(inside) else -1)

    assert set(in_replays(kernels(graph)).name) == {"in"}
    assert mostly_replayed(kernels(graph)) == mostly


def test_work_of_a_compiled_call_is_unplaced_if_it_has_no_layer_but_the_calls():
    graph = build(
        trace(
            """
                op CompiledFxGraph 0 50 layer=m
                launch a 5 10 20
                launch b 15 20 30 layer=m
                launch c 25 30 40 layer=m.fc
                launch d 60 65 70
            """
        )
    )
    found = whole_calls(graph)

    assert names(graph.tasks(np.flatnonzero(found.inside))) == "a, b, c"
    assert names(graph.tasks(np.flatnonzero(found.unplaced))) == "a, b"
    assert not found.around
    graph.select(name="^[ab]$").remove()
    assert whole_calls(graph) is None
