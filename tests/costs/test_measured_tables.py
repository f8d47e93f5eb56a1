"""Times that were measured: of operators, of calls changed in place, and their tables."""

import json
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from daydream.optimizations._hardware import gpu
from graph.small_graphs import kernels
from graph.small_traces import collective, dims, kernel, trace
from pyarrow.parquet import write_table
from recorded import Program
from shared import shared_replay
from work_traces import Call, Kernel, graph_of

import daydream
from daydream import build
from daydream.calibration.operators import OperatorCall, RebuildError, rebuild
from daydream.calibration.run import Calibration, Questions, calibrate, calibrate_in_place
from daydream.costs import KernelTable, find_device, measured_ns, retime
from daydream.costs.device import measured_tables
from daydream.costs.device.measured import give_table
from daydream.costs.device.measured_tables import measured_ratio
from daydream.costs.kernels import floor_ns
from daydream.costs.network.cluster_names import find_cluster
from daydream.errors import DaydreamError, GraphError, NotApplicableError
from daydream.model.precision import SORTS
from daydream.transforms.compose import apply, parse

# Calibration: which calls are asked for, how they are made from shapes, and what a table of them answers


PRODUCT = Call("aten::mm", "64x32 32x16", "volta_sgemm_64x64 900_000")
SUM = Call("aten::add", "64x16 64x16 -", "elementwise 400_000")
FORWARD = Call("aten::linear", "64x32 16x32 -", inner=[PRODUCT, SUM])
LINEAR = Call("aten::addmm", "8 4x16 16x8 - -", tail_ns=100_000)  # on a CPU: a batch of 4
RELU = Call("aten::relu", "4x8", tail_ns=30_000)


def times(*rows, device=None):
    listed = [{"op": o, "shapes": json.dumps(dims(s)), "dtype": d, "duration_ns": t} for o, s, d, t in rows]
    return KernelTable(listed, device)


def forward(*calls):
    """The graph of these calls, all of the forward pass."""
    graph = graph_of(*calls)
    graph.select().set(phase="forward")
    return graph


def asked(graph, name, **options):
    graph.times = questions = Questions()
    apply(parse(name), graph, options)
    return list(questions.asked)


# what is asked ------------------------------------------------------------------------------------


def test_a_batch_asks_for_the_new_shapes():
    graph = graph_of(LINEAR, RELU, device=None)
    graph.select().set(phase="forward")
    found = asked(graph, "batch-size", factor=2.0)
    assert ("aten::addmm", "[[8],[4,16],[16,8],[],[]]", "float32") in found
    assert ("aten::addmm", "[[8],[8,16],[16,8],[],[]]", "float32") in found
    assert ("aten::relu", "[[8,8]]", "float32") in found


def test_a_change_that_asks_nothing_is_refused():
    with pytest.raises(NotApplicableError, match="asks for no times"):
        calibrate(forward(FORWARD), parse("scale"), {"factor": 0.5})


# what a table answers -----------------------------------------------------------------------------


def test_amp_takes_the_ratio_of_the_tables_times_and_the_model_for_the_rest():
    graph = forward(PRODUCT, SUM)
    table = times(
        ("aten::mm", "64x32 32x16", "float32", 800_000),
        ("aten::mm", "64x32 32x16", "float16", 200_000),
    )
    give_table(graph, table)
    apply(parse("amp"), graph, {})
    recorded = kernels(graph).where(lambda tasks: tasks.dtype == "float16")
    least = floor_ns(graph)
    elementwise = least + SORTS[-2].keeps * (400_000 - least)  # an element a thread
    assert recorded.duration_ns.tolist() == [225_000, round(elementwise)]
    assert "Times by model, as shares of the time before: table 69%, bytes 31%." in graph.facts.notes


def test_another_gpu_takes_the_times_measured_there():
    graph = graph_of(FORWARD)
    work = kernels(graph)
    row = ("aten::mm", "64x32 32x16", "float32", 90_000)
    give_table(graph, times(row, device="NVIDIA H100 80GB HBM3"))
    retimed = retime(graph, work, device="h100")
    assert retimed.duration_ns[0] == 90_000
    assert retimed.model.tolist() == ["table", "roofline"]
    with pytest.raises(NotApplicableError, match="times of a NVIDIA H100"):
        retime(graph, work, device="a100")


def test_what_does_not_change_keeps_its_time():
    graph = graph_of(PRODUCT)
    give_table(graph, KernelTable([{"kernel": "volta_sgemm_64x64", "duration_ns": 5}]))
    work = kernels(graph)
    assert retime(graph, work).duration_ns.tolist() == [900_000]
    assert retime(graph, work, dtype="float16").duration_ns.tolist() == [5]


def test_a_table_of_a_cpu_says_nothing_of_a_gpu():
    with pytest.raises(GraphError, match=r"times of a CPU, and this trace's work ran on a Tesla V100"):
        give_table(graph_of(PRODUCT), times(("aten::relu", "1", "float32", 1), device="cpu"))


def test_a_calibration_reads_back_as_it_was_written(tmp_path):
    call = OperatorCall("aten::mm", "[[64,32],[32,16]]", "float16")
    calibration = Calibration("NVIDIA H100", "2.13")
    calibration.measure(call, 1234.4, 7)
    calibration.leave_out(call, "no")
    calibration.save(tmp_path / "t.parquet")
    for table in (KernelTable.load(tmp_path / "t.parquet"), calibration.table()):
        assert (len(table), table.device) == (1, "NVIDIA H100")
        assert table.call("aten::mm", "[[64, 32], [32, 16]]", "float16") == 1234
        assert table.answers == 1
    with pytest.raises(DaydreamError, match="--force"):
        calibration.save(tmp_path / "t.parquet")


# how calls are made -------------------------------------------------------------------------------


def run(op, shapes, dtype="float32", output=None, **options):
    """Make a call and return what the first way that torch takes gives."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        for each in rebuild(OperatorCall(op, json.dumps(dims(shapes)), dtype, output), "cpu", **options):
            try:
                return each()
            except RuntimeError:
                continue
    raise AssertionError(f"torch takes none of the ways to make {op}")


@pytest.mark.parametrize(
    ("op", "shapes", "result"),
    [
        ("aten::mm", "4x3 3x5", (4, 5)),
        ("aten::addmm", "5 4x3 3x5 - -", (4, 5)),
        ("aten::bmm", "2x4x3 2x3x5", (2, 4, 5)),
        ("aten::add", "4x3 3 -", (4, 3)),
        ("aten::add_", "4x3 - -", (4, 3)),
        ("aten::gelu", "4x3 -", (4, 3)),
        ("aten::masked_fill", "4x3 4x3 -", (4, 3)),
        ("aten::threshold_backward", "4x3 4x3 -", (4, 3)),
        ("aten::_softmax", "4x3 - -", (4, 3)),
        ("aten::_softmax_backward_data", "4x3 4x3 - -", (4, 3)),
        ("aten::lerp_", "4x3 4x3 -", (4, 3)),
        ("aten::sum", "4x3 -", ()),
    ],
)
def test_a_call_is_made_from_its_shapes(op, shapes, result):
    for dtype in ("float32", "bfloat16"):
        made = run(op, shapes, dtype)
        assert (tuple(made.shape), str(made.dtype)) == (result, f"torch.{dtype}")


def test_norms_work_over_what_their_weight_has():
    norm = run("aten::native_layer_norm", "2x4x8 - 8 8 -")
    assert [tuple(part.shape) for part in norm] == [(2, 4, 8), (2, 4, 1), (2, 4, 1)]
    shapes = "2x4x8 2x4x8 - 2x4x1 2x4x1 8 8 -"
    assert [tuple(part.shape) for part in run("aten::native_layer_norm_backward", shapes)] == [
        (2, 4, 8),
        (8,),
        (8,),
    ]
    shapes = "2x6x4x4 6 6 6 6 - - -"
    assert run("aten::native_batch_norm", shapes)[1].numel() == 6  # statistics of the batch
    assert run("aten::native_batch_norm", shapes, trains=False)[1].numel() == 0


@pytest.mark.parametrize(
    ("images", "weight", "output"),
    [
        ((2, 3, 224, 224), (8, 3, 7, 7), (2, 8, 112, 112)),
        ((2, 4, 16, 16), (8, 4, 3, 3), (2, 8, 16, 16)),
        ((2, 4, 16, 16), (8, 4, 3, 3), (2, 8, 14, 14)),
        ((2, 4, 56, 56), (8, 4, 1, 1), (2, 8, 28, 28)),
        ((2, 8, 16, 16), (8, 1, 3, 3), (2, 8, 8, 8)),  # one filter a channel
        ((2, 4, 50), (8, 4, 5), (2, 8, 23)),
    ],
)
def test_the_stride_of_a_convolution_follows_from_its_output(images, weight, output):
    made = run("aten::convolution", [images, weight, [], [], [], [], [], [], []], output=output)
    assert tuple(made.shape) == output
    shapes = [output, images, weight, [], [], [], [], [], [], [], []]
    gradients = run("aten::convolution_backward", shapes)
    assert [tuple(part.shape) for part in gradients[:2]] == [images, weight]


def test_lists_of_tensors_are_made_for_optimizers():
    pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            lists = [part for part in args if isinstance(part, list) and part and hasattr(part[0], "shape")]
            seen[func._schema.name] = [[list(tensor.shape) for tensor in part] for part in lists]
            return func(*args, **(kwargs or {}))

    tensors = [[4, 3], [5]]
    with Watch():
        run("aten::_foreach_add_", [tensors, tensors, []])
        run("aten::_fused_adamw_", [tensors, tensors, tensors, tensors, [], [[], []], *[[]] * 9])
    assert seen["aten::_foreach_add_"] == [tensors] * 2
    assert seen["aten::_fused_adamw_"][:4] == [tensors] * 4  # parameters, gradients and both moments
    assert seen["aten::_fused_adamw_"][-1] == [[], []]  # a count of steps for each


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (OperatorCall("my::op", "[[4]]", "float32"), "not an operator of torch itself"),
        (OperatorCall("aten::embedding", "[[64,8],[2,4],[],[],[]]", "float32"), "indices"),
        (OperatorCall("aten::copy_", "[[4],[4],[]]", "float32"), "layouts or types"),
        (OperatorCall("aten::pow", "[[4],[]]", "float32"), "numbers that are not recorded"),
        (OperatorCall("aten::sum", "[[4,3],[],[],[]]", "float32"), "dimensions"),
        (OperatorCall("aten::mm", "[[4,3],[3,5]]", None), "element type is not recorded"),
        (OperatorCall("aten::mm", "[[4,3],[3,5]]", "float8_e4m3fn"), "float8"),
        (OperatorCall("aten::conv2d", "[[2,3,8,8],[4,3,3,3],[]]", "float32"), "neither is its output"),
        (OperatorCall("aten::native_batch_norm", "[[2,6,4],[6],[6],[3],[3],[],[],[]]", "float32"), "fit"),
        (OperatorCall("aten::avg_pool2d", "[[2,6,4,4],[],[],[],[],[],[]]", "float32"), "kernel_size"),
    ],
)  # fmt: skip
def test_what_the_shapes_do_not_tell_is_not_guessed(call, reason):
    pytest.importorskip("torch")
    with pytest.raises(RebuildError, match=reason):
        rebuild(call, "cpu")


# the whole way ------------------------------------------------------------------------------------


def test_a_calibration_measures_what_it_can_and_lists_the_rest():
    pytest.importorskip("torch")
    lookup = Call("aten::embedding", "64x8 4x6 - - -", tail_ns=50_000)
    custom = Call("my::op", "4x8", tail_ns=40_000)
    view = Call("aten::view", "4x8 -", tail_ns=1_000)
    graph = graph_of(LINEAR, RELU, lookup, custom, view, device=None)
    found = calibrate(graph, call_limit_s=0.01)
    assert [(call.op, call.dtype) for call in found.measured] == [
        ("aten::addmm", "float32"),
        ("aten::relu", "float32"),
    ]
    assert all(call.duration_ns > 0 and call.repeats > 0 for call in found.measured)
    assert [(call.op, call.reason.split(",")[0]) for call in found.left_out] == [
        ("aten::embedding", "works on indices"),
        ("my::op", "its work is not known"),
    ]
    assert found.device == "cpu"


@pytest.mark.slow
def test_what_is_not_reached_in_time_is_listed():
    pytest.importorskip("torch")
    with pytest.raises(NotApplicableError, match="not reached within 1e-09 s: 2"):
        calibrate(graph_of(LINEAR, RELU, device=None), total_limit_s=1e-9)


def test_a_call_that_crashes_torch_does_not_end_the_calibration(monkeypatch):
    pytest.importorskip("torch")
    from daydream.calibration import worker as process

    sent = process.Worker._exchange

    def killing(self, message):
        if message.get("op") == "aten::addmm":
            self._process.kill()
            self._process.wait()
        return sent(self, message)

    monkeypatch.setattr(process.Worker, "_exchange", killing)
    found = calibrate(graph_of(LINEAR, RELU, device=None), call_limit_s=0.01)
    assert [call.op for call in found.measured] == ["aten::relu"]
    assert [call.reason.partition(" (")[0] for call in found.left_out] == ["torch crashed on it"]


@pytest.mark.slow
def test_a_call_that_hangs_is_given_up():
    pytest.importorskip("torch")
    from daydream.calibration.worker import Worker

    large = OperatorCall("aten::mm", "[[4000,4000],[4000,4000]]", "float64")
    with closing(Worker(device="cpu", threads=1, trains=True, call_limit_s=0.01, patience_s=0.05)) as worker:
        assert "took longer than" in worker.time(large, 10.0)["reason"]
        small = worker.time(OperatorCall("aten::relu", "[[8]]", "float32"), 10.0)
    assert small.keys() <= {"duration_ns", "repeats", "reason"}  # a slow machine may miss this limit, too


def test_without_a_gpu_a_gpus_trace_is_refused():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DaydreamError, match="torch finds none here"):
        calibrate(graph_of(FORWARD))


# Times of changed operators from two recordings, worked out by hand


def recorded(gelu, back, product, operators=None, **other):
    """Some GELUs of so many ns, a product that no change touches, and the GELUs' nodes."""
    program = Program()

    def call(name, phase, ns, **columns):
        with program.range(name, "operator", phase=phase, op=name, dtype="float32", **columns):
            program.now += ns

    call("aten::mm", "forward", product, shapes="[[4, 4], [4, 4]]")
    for sequence, ns in enumerate(gelu, 1):
        call("aten::gelu", "forward", ns, shapes="[[4, 8], []]", sequence=sequence)
    for sequence in range(len(gelu), 0, -1):
        with program.range("GeluBackward0", "operator", phase="backward", sequence=sequence):
            call("aten::gelu_backward", "backward", back)
    for name, ns in other.items():
        call(f"aten::{name}", "forward", ns, shapes="[[2]]")
    graph = program.graph()
    trace = graph.trace
    assert trace is not None
    if operators is not None:
        trace.metadata["changed_operators"] = operators
    return trace


def times_before_and_after(result):
    return {(each.op, each.phase): (each.before_ns, each.duration_ns) for each in result.measured}


def test_calls_are_compared_forward_and_backward_and_the_table_is_read_as_it_was_written(tmp_path):
    found = calibrate_in_place(
        recorded([100] * 4, 200, 1_000), recorded([40] * 4, 300, 1_000, ["aten::gelu"])
    )
    assert times_before_and_after(found) == {
        ("aten::gelu", "forward"): (100, 40),
        ("aten::gelu", "backward"): (200, 300),
    }
    assert (found.drift, found.device, found.left_out) == (1.0, "cpu", [])
    found.save(tmp_path / "times.parquet")
    table = KernelTable.load(tmp_path / "times.parquet")
    assert table.in_place == found.table().in_place
    assert list(table.in_place.values()) == [[(100.0, 40.0), (200.0, 300.0)]]
    assert table.device == "cpu"


def test_the_lower_quartile_counts_as_other_programs_only_add():
    before = recorded([100, 100, 100, 9_000], 200, 1_000)
    assert times_before_and_after(calibrate_in_place(before, recorded([50] * 4, 200, 1_000, ["aten::gelu"])))[
        "aten::gelu", "forward"
    ] == (100, 50)


def test_what_one_recording_lacks_is_left_out_and_said():
    after = recorded([100] * 4, 200, 1_000, ["aten::gelu", "aten::relu"], relu=5)
    found = calibrate_in_place(recorded([100] * 4, 200, 1_000), after)
    assert found.left_out == ["aten::relu [[2]] float32: only with the change"]


def test_a_tool_that_orders_nothing_is_told():
    one = recorded([100], 200, 1_000)
    with pytest.raises(NotApplicableError, match="no operator of this script"):
        calibrate_in_place(one, one)
    with pytest.raises(NotApplicableError, match="no call of aten::silu"):
        calibrate_in_place(one, recorded([100], 200, 1_000, ["aten::silu"]))


# Times of products and attention from tables that others measured; these are made, not the package's


H100, B200, A100_PCIE = (find_device(name) for name in ("h100", "b200", "a100-pcie-40gb"))
SIDES = 2048, 4096, 8192
SQUARES = [(m, n, k) for m in SIDES for n in SIDES for k in SIDES]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a function that writes what products take on a GPU, in one library's file."""
    monkeypatch.setattr(measured_tables, "tables_folder", lambda: tmp_path)
    measured_tables._rows.cache_clear()

    def write(device, ns, library="vllm", dtype="bfloat16"):
        path = tmp_path / device.tables / "gemm" / library / "1.0" / "gemm_perf.parquet"
        path.parent.mkdir(parents=True)
        m, n, k = zip(*SQUARES, strict=True)
        ms = [ns(*each) / 1e6 for each in SQUARES]
        write_table(pa.table({"gemm_dtype": [dtype] * len(m), "m": m, "n": n, "k": k, "latency": ms}), path)

    yield write
    measured_tables._rows.cache_clear()


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr(measured_tables, "tables_folder", lambda: None)
    measured_tables._rows.cache_clear()


def at_half_of_peak(peak):
    # a fixed cost of 2.5 us, and all twice as long as the roofline says
    return lambda m, n, k: 2 * (2_500 + 2 * m * n * k / (peak * 1e3))


def test_between_measured_sizes_the_roofline_is_corrected_as_the_nearest_say(tables):
    tables(H100, at_half_of_peak(989.4))
    ns, spread = measured_ns(H100, "gemm", "bfloat16", np.array([[3000, 3000, 3000], [8192, 4096, 2048]]))
    assert ns == pytest.approx([2 * (2_500 + 2 * 3000**3 / 989.4e3), 2 * (2_500 + 2**37 / 989.4e3)])
    nearest = 3 * np.log2(4096 / 3000)  # octaves to 4096 cubed; 2048 is farther
    assert spread == pytest.approx([0.05 + 0.05 * nearest, 0.05])  # all neighbors agree


def test_of_several_libraries_the_fastest_counts(tables):
    tables(H100, at_half_of_peak(989.4))
    tables(H100, lambda *sizes: 1e12, library="slow")
    ((ns,), _) = measured_ns(H100, "gemm", "float16", np.array([[4096, 4096, 4096]]))
    assert ns == pytest.approx(2 * (2_500 + 2**37 / 989.4e3))


def test_a_library_that_took_as_long_as_the_call_tells_the_ratio(tables):
    for device, sglang, vllm in ((H100, 1, 4), (B200, 0.5, 1)):
        for library, times in (("sglang", sglang), ("vllm", vllm)):
            tables(device, lambda *sizes, times=times: times * at_half_of_peak(989.4)(*sizes), library)
    took = 4 * at_half_of_peak(989.4)(4096, 4096, 4096)
    ratio, _ = measured_ratio(H100, B200, "gemm", "bfloat16", [(4096, 4096, 4096)], np.array([took]))
    assert ratio == pytest.approx(0.25, rel=0.01)


def test_a_product_in_tf32_is_one_in_16_bits_that_sums_over_twice_as_many(tables):
    tables(H100, at_half_of_peak(989.4))
    one = measured_ns(H100, "gemm", "tf32", np.array([[4096, 4096, 2048]]))
    other = measured_ns(H100, "gemm", "bfloat16", np.array([[4096, 4096, 4096]]))
    assert one[0] == other[0]


def test_what_nobody_measured_is_none(tables):
    asked = np.array([[4096, 4096, 4096]])
    assert measured_ns(H100, "gemm", "bfloat16", asked) is None  # no file
    tables(H100, at_half_of_peak(989.4))
    assert measured_ns(H100, "gemm", "float8_e4m3fn", asked) is None  # no such type
    assert measured_ns(A100_PCIE, "gemm", "bfloat16", asked) is None  # no such GPU
    assert measured_ns(H100, "attention", "bfloat16", np.array([[8, 1024, 16, 16, 64]])) is None


TINY = [Call("aten::add", "8 8 -", [Kernel("tiny", 2_000)])] * 60
MEASURED_PRODUCT = Call("aten::mm", "4096x4096 4096x4096", [Kernel("one", 400_000)], dtype="bfloat16")


def moved(call=MEASURED_PRODUCT):
    graph = graph_of(*TINY, call, device="NVIDIA H100 80GB HBM3")
    return graph, kernels(graph).where(name="one")


def test_a_recorded_product_goes_with_the_ratio_of_what_was_measured_on_both(tables):
    tables(H100, at_half_of_peak(989.4))
    tables(B200, lambda *sizes: 0.5 * at_half_of_peak(989.4)(*sizes))  # twice as fast, not 2.27 times
    graph, product = moved()
    found = retime(graph, product, device=B200)
    assert (found.duration_ns.tolist(), found.model.tolist()) == ([200_000], ["measured"])
    assert found.doubt < 0.5
    gpu(graph, to="b200")
    assert not any("narrower range" in note for note in graph.facts.notes)


def test_without_tables_it_goes_by_peaks_in_a_range_as_wide_as_their_error(no_tables):
    graph, product = moved()
    found = retime(graph, product, device=B200)
    assert (found.model.tolist(), found.doubt.tolist()) == (["roofline"], [0.5])
    gpu(graph, to="b200")
    assert any("pip install -e '.[gpus]'" in note for note in graph.facts.notes)


# Collectives between GPUs: by tables of NCCL, made as well, else by the model of both machines


def write_nccl(folder, device, ms, operation="all_reduce"):
    """Write what a collective of four GPUs takes from 1 ki to 64 Mi elements, the longest twice."""
    path = folder / device.tables / "comm" / "nccl" / "2.0" / "nccl_perf.parquet"
    path.parent.mkdir(parents=True)
    sizes = [2**power for power in range(10, 27)]
    rows = len(sizes)
    table = {"nccl_dtype": ["half"] * rows, "op_name": [operation] * rows, "num_gpus": [4] * rows,
             "message_size": sizes, "latency": [ms(size) for size in sizes]}  # fmt: skip
    write_table(pa.table(table), path)


def job(device="NVIDIA H100 80GB HBM3", ranks=(0, 1, 2, 3), operation="all_reduce", **more):
    """A kernel and a collective of 4 MiB, 100 us each, as rank 0 of a job recorded them."""
    rows = (
        kernel("work", 0, 100, dtype="float32"),
        collective(100, 200, 4 * 2**20, operation=operation, group="all", **more),
    )
    graph = build(
        trace(
            *rows,
            steps=(0, 200),
            devices=[{"id": 0, "name": device}],
            world_size=len(ranks),
            groups=[{"name": "all", "ranks": list(ranks)}],
        )
    )
    return graph, graph.select(kind="collective")


def doubts(graph, transfers):
    """Return how far the transfers may be off: by the model, and for waiting."""
    mine = [each for each in graph.doubted if each[0].tolist() == transfers.ids.tolist()]
    return {waiting: error.tolist() for _, error, waiting in mine}


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_to_all"])
def test_a_collective_goes_with_the_ratio_of_what_nccl_was_measured_to_take_on_both(
    tables, tmp_path, operation
):
    named = operation.replace("all_to_all", "alltoall")
    write_nccl(tmp_path, H100, lambda size: size / 1e8, named)
    write_nccl(tmp_path, B200, lambda size: size / 4e8, named)
    graph, transfers = job(operation=operation)
    gpu(graph, to="b200")
    assert transfers.duration_ns.tolist() == [25_000]
    # All measured sizes agree and its own is among them. Rank 0 may have waited all the time: 75 us more.
    assert doubts(graph, transfers) == {False: [0.05], True: [3.0]}
    said = "1 collective within a node take 0.25 to 0.25 times as long, as NCCL was measured"
    assert any(said in note for note in graph.facts.notes)
    assert not any("keep their time" in note for note in graph.facts.notes)


def test_a_range_is_as_wide_as_measured_neighbors_disagree(tables, tmp_path):
    write_nccl(tmp_path, H100, lambda size: size / 1e8)
    write_nccl(tmp_path, B200, lambda size: size / 4e8 * (2 if size > 2**21 else 1))
    graph, transfers = job()
    transfers.set(bytes=3 * 2**21)  # between two sizes, of which one takes twice as long
    gpu(graph, to="b200")
    assert 25_000 < transfers.duration_ns[0] < 50_000
    assert doubts(graph, transfers)[False][0] > 0.5


def modelled_ns(machine, members=4, nbytes=4 * 2**20):
    return find_cluster(machine).time_ns("all_reduce", nbytes, members)


@pytest.mark.parametrize(
    ("members", "device", "to", "off"),
    [
        (4, "NVIDIA H100 80GB HBM3", "b200", 0.5),
        (2, "NVIDIA H100 80GB HBM3", "l40s", 0.5),
        (4, "NVIDIA H100 80GB HBM3", "l40s", 3.0),  # four on PCIe: up to four times as long
        (8, "NVIDIA L40S", "h100", 1 - 1 / 16),  # from eight of them: a sixteenth of that
    ],
)
def test_without_tables_the_model_of_both_machines_tells_in_a_wide_range(no_tables, members, device, to, off):
    graph, transfers = job(device, range(members))
    gpu(graph, to=to)
    here, there = find_device(device).machine, find_device(to).machine
    ratio = modelled_ns(there, members) / modelled_ns(here, members)
    assert transfers.duration_ns.tolist() == [round(100_000 * ratio)]
    assert doubts(graph, transfers)[False] == [off]
    assert any(f"a model of NCCL says of {here} and {there}" in note for note in graph.facts.notes)


@pytest.mark.parametrize(
    ("asked", "to"),
    [
        ({"ranks": (0, 8)}, "b200"),  # two nodes
        ({"ranks": range(16)}, "b200"),
        ({"ranks": (0, 1), "operation": "wait"}, "b200"),
        ({}, "gb200"),  # in no usual machine
        ({}, "h200"),  # in the same machine
    ],
)
def test_other_collectives_keep_their_time(no_tables, asked, to):
    graph, transfers = job(**asked)
    gpu(graph, to=to)
    assert transfers.duration_ns.tolist() == [100_000]
    assert any("keep their time" in note for note in graph.facts.notes)


def test_what_a_collective_may_be_off_widens_both_ends(no_tables):
    job_of_two = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz")
    found = daydream.whatif(job_of_two, "gpu", to="l40s")
    assert found.affected.doubt > 0
    assert found.predicted_low_ns < found.predicted_ns < found.predicted_high_ns
