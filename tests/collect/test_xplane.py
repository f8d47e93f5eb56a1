"""JAX's xplane.pb: XSpaces written by hand (GPU), a small model (CPU), and public ones.

`jax/record_jax.py` of d6db2c6c recorded the small model.
"""

import gzip
from pathlib import Path

import pytest
from collect.test_rocprof import row_of
from collect.xspace import PlaneWriter, field, training, write
from shared import refused, shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.collect.importers.hlo import (
    Told,
    kernel_of,
    layer_of,
    phase_of,
    programs_of,
    told_by,
)
from daydream.collect.importers.xspace import planes
from daydream.costs.kernels import bound, work

CPU = Path(__file__).parent / "jax" / "cpu_training.xplane.pb"


@pytest.fixture
def trace(tmp_path):
    return import_trace([write(tmp_path / "host.xplane.pb")])


def public(name):
    return import_trace([shared_trace(f"formats/jax/{name}.xplane.pb.gz")])


def test_streams_are_lanes_and_threads_hold_calls_operators_and_ranges(trace):
    kernel, copy = row_of(trace, "ampere_bf16_s16816gemm_0"), row_of(trace, "Memcpy HtoD (Pinned -> Device)")
    reduced = row_of(trace, "ncclDevKernel_AllReduce_Sum_f32(x)")
    assert [trace.values("kind")[row] for row in (kernel, copy, reduced)] == [
        "kernel",
        "memcpy",
        "collective",
    ]
    assert [int(trace["stream"][row]) for row in (kernel, copy, reduced)] == [13, 13, 20]
    assert (trace.values("grid")[kernel], trace.values("block")[kernel]) == ("800,20,1", "128,1,1")
    assert trace["bytes"][copy] == 4096
    assert trace.values("collective")[reduced] == "all_reduce"
    assert trace.values("name")[trace["parent"][kernel]] == "cuLaunchKernel"
    assert trace.values("op")[kernel] == "dot.1"
    # 3 kernels and a copy, 6 calls, 3 operators, a range and the outer wait, in each of 4 steps: no frames,
    # nothing of what a wait does meanwhile, and nothing that a viewer derived.
    assert len(trace) == 4 * 15
    assert trace.metadata["profiler"] == "jax"
    assert (trace.metadata["vendor"], trace.metadata["origin_ns"]) == ("cuda", 1_700_000_000_000_010_000)
    name = "NVIDIA A100-SXM4-80GB"
    device = {"id": 0, "name": name, "multiprocessors": 108, "memory_bytes_per_second": 2_000_000_000_000}
    assert trace.metadata["devices"] == [device]
    assert "secret" not in str(trace.metadata)


@pytest.mark.parametrize(
    ("path", "layer", "phase"),
    [
        ("jit(step)/jit(main)/jvp(MLP)/Dense_0/dot_general", "MLP.Dense_0", "forward"),
        ("jit(step)/transpose(jvp(MLP))/Dense_0/dot_general", "MLP.Dense_0", "backward"),
        ("jit(loss_fn)/jvp()/te_fused_attn_forward_ffi", None, "forward"),
        ("jit(step)/jvp(MLP)/Dense_0/bsd,de->bse/dot_general", "MLP.Dense_0", "forward"),
        ("jit(step)/jvp(bsd,de->bse)/dot_general", None, "forward"),
        ("jit(f)/a(b/c)/d", "a(b/c)", None),
        ("((((", None, None),
    ],
)
def test_paths_of_operators(path, layer, phase):
    assert (layer_of(path), phase_of(path)) == (layer, phase)


def test_steps_are_the_ranges_that_count_steps(trace):
    assert [step["name"] for step in trace.metadata["steps"]] == [f"train step {n}" for n in range(4)]
    assert trace.metadata["step_source"] == "ranges such as 'train step 0'"


def test_the_host_waits_for_the_device_where_it_waits_for_arrays(trace):
    replay = daydream.replay(trace)
    assert replay.max_error == 0
    faster = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    # 30 + 29 + 15 us of kernels, one behind the other, take half: 37 less of 100.
    assert 62_000 <= faster.predicted_ns <= 71_000
    assert daydream.explain(trace).bound.value == "turns"  # 74 of 100 us on the GPU, and the CPU before it


def test_calls_on_a_line_of_their_own_belong_to_the_thread_of_their_operators(tmp_path):
    content = training(vendor="AMD", calls_apart=True)
    trace = import_trace([write(tmp_path / "t.xplane.pb", content)])

    assert set(trace["tid"][trace.is_kind("runtime", "operator")].tolist()) == {77}
    assert trace.values("op")[row_of(trace, "ampere_bf16_s16816gemm_0")] == "dot.1"
    assert trace.metadata["vendor"] == "rocm"


def test_a_folder_that_jax_logs_to_is_its_last_profile(tmp_path):
    for number, name in ((1, "2025_01_01"), (4, "2025_01_02")):
        folder = tmp_path / "plugins" / "profile" / name
        folder.mkdir(parents=True)
        write(folder / "host.xplane.pb", training(number))
        (folder / "host.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))

    assert len(import_trace([tmp_path]).metadata["steps"]) == 4


def test_what_is_no_profile_of_jax_is_refused_in_a_line(tmp_path):
    empty = write(tmp_path / "e.xplane.pb", b"")
    assert "is empty" in refused(empty)
    assert "holds no work" in refused(write(tmp_path / "n.pb", field(1, PlaneWriter("/host:CPU").done())))
    assert "is of a TPU" in refused(write(tmp_path / "t.pb", field(1, PlaneWriter("/device:TPU:0").done())))
    assert "cut off or damaged" in refused(write(tmp_path / "c.xplane.pb", training()[:-40]))
    assert "cut off or damaged" in refused(write(tmp_path / "x.xplane.pb", b"\x0a" + b"\xff" * 30))


def test_a_public_training_profile_is_bound_by_its_gpu():
    trace = public("mi300x_jax_te_fused_attn_training")

    assert {"forward", "backward"} <= set(trace.values("phase"))
    assert daydream.explain(trace).bound.value == "GPU"  # busy 93 % of the steps


def test_threads_of_xlas_pool_complete_the_steps_of_a_recording_of_the_cpu():
    replay = daydream.replay(import_trace([CPU]))
    assert len(replay.steps) == 3  # all but the first, though the last operators run on threads of the pool
    assert replay.max_error < 0.001


GEMM = '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}'
MORE = {  # what an instruction has besides
    "first": field(9, 0),  # which parameter it is
    "second": field(9, 1),
    "of_left": field(30, field(1, 1) + field(2, 0)),  # contracted: the last dimension of the left
    "gemm": field(28, "__cublas$gemm") + field(43, GEMM),
    "images": field(16, field(4, 3)),  # kernels are height, width, channels in, channels out
    "mine": field(28, "my_kernel"),
}
KINDS = {"s8": 2, "f32": 11, "pair": 13, "bf16": 16}
COMPUTATIONS = {  # name, operation, number, type and sizes of what it returns, and what it takes
    77: """
        a parameter 1 bf16,64,32 more=first
        b parameter 2 bf16,32,128 more=second
        dot.9 dot 3 f32,64,128 takes=1,2 more=of_left
        bias.9 add 4 f32,64,128 takes=3,3
    """,
    78: """
        large parameter 1 f32,1000,1000 more=first
        part slice 2 f32,10,1000 takes=1
        sum reduce 3 f32,10 takes=2,2
    """,
    79: """
        cache parameter 1 f32,1000,1000 more=first
        row parameter 2 f32,1,1000 more=second
        new dynamic-update-slice 3 f32,1000,1000 takes=1,2
    """,
    80: """
        x parameter 1 bf16,64,32
        w parameter 2 bf16,32,128
        big parameter 3 f32,1000,1000
        convert.2 convert 4 f32,64,32 takes=1
        gemm_fusion_dot.1 fusion 5 f32,64,128 takes=1,2 calls=77
        input_reduce_fusion fusion 6 f32,10 takes=3 calls=78
        row.1 parameter 7 f32,1,1000
        loop_update_fusion fusion 8 f32,1000,1000 takes=3,7 calls=79
        left parameter 9 bf16,8,16
        right parameter 10 bf16,4,16
        custom-call.3 custom-call 11 bf16,8,4;s8,4096 takes=9,10 more=gemm
        photos parameter 12 bf16,2,10,10,3
        kernels parameter 13 bf16,3,3,3,7
        conv.4 convolution 14 bf16,2,8,8,7 takes=12,13 more=images
        mine.5 custom-call 15 bf16,8,4 takes=9,10 more=mine
        all-reduce.6 all-reduce-start 16 f32,1000,1000 takes=3
        pair tuple 17 pair
    """,
}


def shape(text):
    kind, *sizes = text.split(",")
    return field(2, KINDS[kind]) + b"".join(field(3, int(size)) for size in sizes)


def instruction(line):
    name, operation, number, returns, *given = line.split()
    told = dict(each.split("=") for each in given)
    shapes = [shape(each) for each in returns.split(";")]
    kind = (
        shapes[0]
        if len(shapes) == 1
        else field(2, KINDS["pair"]) + b"".join(field(4, each) for each in shapes)
    )
    parts = field(1, name) + field(2, operation) + field(3, kind) + field(35, int(number))
    numbers = {36: told.get("takes", ""), 38: told.get("calls", "")}
    uses = [field(key, int(each)) for key, text in numbers.items() for each in text.split(",") if each]
    return parts + MORE.get(told.get("more"), b"") + b"".join(uses)


def hlo():
    """A program of each sort of operator."""
    computations = [
        field(
            3, b"".join(field(2, instruction(line)) for line in text.strip().splitlines()) + field(5, number)
        )
        for number, text in COMPUTATIONS.items()
    ]
    return field(1, field(1, "jit_step") + b"".join(computations))


def metadata_plane(proto):
    plane = PlaneWriter("/host:metadata")
    stat = field(1, 1) + field(6, proto)  # a stat of bytes: `Hlo Proto`
    names = field(5, field(1, 1) + field(2, field(1, 1) + field(2, "Hlo Proto")))
    program = field(4, field(1, 7) + field(2, field(1, 7) + field(2, "jit_step(7)") + field(5, stat)))
    data = field(1, plane.done() + names + program)
    return data, next(planes(data))


def test_the_programs_of_a_profile_tell_what_operators_do():
    data, plane = metadata_plane(hlo())
    (program,) = programs_of(data, plane)
    told = told_by(program)

    assert program.name == "jit_step"
    assert told["convert.2"] == Told("float32", "[[64, 32]]", "copy", 0, 64 * 32 * (2 + 4))
    # Its type is what it multiplies, not what it returns; the sum behind the product is 8,192 FLOP more.
    product = 2 * 64 * 32 * 128 + 64 * 128
    moved = 2 * (64 * 32 + 32 * 128) + 4 * 64 * 128
    assert told["gemm_fusion_dot.1"] == Told("bfloat16", "[[64, 32], [32, 128]]", "matmul", product, moved)
    assert kernel_of("gemm_fusion_dot.1") == "gemm_fusion_dot_1"
    # Only the slice is read, only the row written.
    assert told["input_reduce_fusion"] == Told("float32", "[[1000, 1000]]", "reduction", 10_000, 40_040)
    assert (told["loop_update_fusion"].flop, told["loop_update_fusion"].nbytes) == (0, 2 * 4_000)
    # A library's product: as its settings say, without its workspace.
    gemm = told["custom-call.3"]
    assert (gemm.family, gemm.flop, gemm.nbytes) == ("matmul", 2 * 8 * 16 * 4, 2 * (8 * 16 + 4 * 16 + 8 * 4))
    assert (told["conv.4"].family, told["conv.4"].flop) == ("convolution", 2 * (2 * 8 * 8 * 7) * (3 * 3 * 3))
    # A call of someone's own kernel tells nothing, and a collective how much goes in.
    assert told["mine.5"] == Told("bfloat16", "[[8, 16], [4, 16]]")
    assert told["all-reduce.6"] == Told("float32", "[[1000, 1000]]", elements=1_000_000)
    assert told["pair"] == Told(None)


def test_a_damaged_program_is_none():
    for cut in range(0, len(hlo()), 7):
        data, plane = metadata_plane(hlo()[:cut])
        for program in programs_of(data, plane):
            assert isinstance(told_by(program), dict)


def test_kernels_of_public_profiles_have_the_work_of_their_operators():
    trace = public("mi300x_jax0.8_conv_8gpu")
    kernels = daydream.replay(trace).graph.select(kind="kernel")
    amounts = work(kernels.graph, kernels)
    product = kernels.name == "input_transpose_fusion"
    # It reads 5,120 x 34 x 31 x 53 elements of 16 bits and writes them in another order.
    assert set(amounts.nbytes[product].tolist()) == {2 * 2 * 5120 * 34 * 31 * 53}
    convolution = amounts.family == "convolution"
    # Each of the outputs is a sum over 16 channels and 1 x 2 x 2 places; Im3d2Col only prepares it.
    assert set(amounts.flop[convolution].tolist()) == {2 * 5120 * 34 * 31 * 53 * 16 * 2 * 2}
    assert {name[:4] for name in kernels.name[convolution].tolist()} == {"Cijk"}
    assert set(bound(kernels.graph, kernels).kind[product].tolist()) == {"memory"}
    assert "roofline 96%" in " ".join(daydream.whatif(trace, "gpu", to="h100").notes)


@pytest.mark.parametrize(
    ("name", "kernel", "dtype"),
    [
        ("a10g_conv2d", "gemm_fusion_dot_1", "float32"),  # in a CUDA graph: told by the kernel's name
        ("mi300x_jax_te_fused_attn_training", "gemm_fusion_dot", "bfloat16"),
        ("mi300x_jax0.8_conv_8gpu", "loop_transpose_fusion", "bfloat16"),
    ],
)
def test_public_profiles_tell_element_types(name, kernel, dtype):
    trace = public(name)
    rows = zip(trace.values("name"), trace.values("dtype"), trace.is_kind("kernel"), strict=True)
    found = {told for own, told, is_kernel in rows if own == kernel and is_kernel}
    assert found == {dtype}
