"""JAX's xplane.pb: XSpaces written by hand (GPU), a recording of a small model (CPU), and public ones."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from shared import shared_trace
from xspace import PlaneWriter, field, training, write

import daydream
from daydream.collect.importers import import_trace
from daydream.collect.importers.formats import format_of
from daydream.collect.importers.xplane.op_paths import layer_of, phase_of
from daydream.collect.importers.xplane.programs import kernel_of, types_of
from daydream.collect.importers.xplane.space import Plane, planes
from daydream.errors import TraceError
from daydream.trace.trace import Trace
from daydream.transforms.code_lines import IN_JAX, code_of, framework_of
from daydream.transforms.registry import names

CPU = Path(__file__).parent / "jax" / "cpu_training.xplane.pb"


def row_of(trace: Trace, name: str) -> int:
    return trace.values("name").index(name)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return import_trace([write(tmp_path / "host.xplane.pb")])


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as raised:
        import_trace([path])
    said = str(raised.value)
    assert "\n" not in said
    return said


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


def test_transformations_tell_phases_and_scopes_tell_layers(trace):
    first, second = row_of(trace, "ampere_bf16_s16816gemm_0"), row_of(trace, "ampere_bf16_s16816gemm_1")
    assert [trace.values("phase")[row] for row in (first, second)] == ["forward", "backward"]
    assert [trace.values("layer")[row] for row in (first, second)] == ["MLP.Dense_0"] * 2


@pytest.mark.parametrize(
    ("path", "layer", "phase"),
    [
        ("jit(step)/jit(main)/jvp(MLP)/Dense_0/dot_general", "MLP.Dense_0", "forward"),
        ("jit(step)/transpose(jvp(MLP))/Dense_0/dot_general", "MLP.Dense_0", "backward"),
        ("jit(step)/jvp(while)/body/vmap(block)/add", "block", "forward"),
        ("jit(loss_fn)/jvp()/te_fused_attn_forward_ffi", None, "forward"),
        ("jit(step)/add", None, None),
        ("", None, None),
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


@pytest.mark.parametrize(
    ("name", "options", "low", "high"),
    [
        ("network", {"bandwidth_factor": 2.0}, 88_000, 97_000),  # the all-reduce takes 7.5 of 15 us less
        ("gpu", {"to": "h100"}, 50_000, 100_000),
    ],
)
def test_a_profile_of_jax_answers_what_ifs(trace, name, options, low, high):
    assert low < daydream.whatif(trace, name, **options).predicted_ns < high


def test_overlap_says_that_nothing_waits_for_the_all_reduce(trace):
    with pytest.raises(daydream.DaydreamError, match="hidden already"):
        daydream.whatif(trace, "overlap")


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


def test_a_recording_of_a_small_model_on_the_cpu():
    assert format_of(CPU) == "xplane"
    trace = import_trace([CPU])

    assert [step["name"] for step in trace.metadata["steps"]] == [f"train step {n}" for n in range(4)]
    assert trace.metadata["vendor"] == "cpu"
    assert {"dot"} <= set(trace.values("op"))
    assert daydream.replay(trace).measured_ns > 0


def test_what_is_no_profile_of_jax_is_refused_in_a_line(tmp_path):
    empty = write(tmp_path / "e.xplane.pb", b"")
    assert "is empty" in refused(empty)
    assert "holds no work" in refused(write(tmp_path / "n.pb", field(1, PlaneWriter("/host:CPU").done())))
    assert "is of a TPU" in refused(write(tmp_path / "t.pb", field(1, PlaneWriter("/device:TPU:0").done())))
    assert "cut off or damaged" in refused(write(tmp_path / "c.xplane.pb", training()[:-40]))
    assert "cut off or damaged" in refused(write(tmp_path / "x.xplane.pb", b"\x0a" + b"\xff" * 30))


def test_damaged_profiles_are_refused_in_one_line_or_read(tmp_path):
    chance = random.Random(2)
    sound = training(2)
    refusals: list[str] = []
    for number in range(300):
        damaged = bytearray(sound)
        if number % 3:
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        else:
            del damaged[chance.randrange(len(damaged)) :]
        path = tmp_path / "d.xplane.pb"
        path.write_bytes(damaged)
        try:
            import_trace([path])
        except TraceError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert not any("\n" in said for said in refusals)


@pytest.mark.parametrize(
    ("name", "kernels", "devices"),
    [
        ("a10g_conv2d", 60, 1),
        ("mi300x_jax0.8_conv_8gpu", 235, 8),
        ("mi300x_jax_legacy_conv_8gpu", 78, 2),
        ("mi300x_jax_te_fused_attn_training", 150, 1),
    ],
)
def test_public_profiles_are_linked_and_replay(name, kernels, devices):
    trace = import_trace([shared_trace(f"formats/jax/{name}.xplane.pb.gz")])

    work = trace.is_kind("kernel", "memcpy", "memset", "collective")
    assert work.sum() == kernels
    assert (trace["parent"][work] >= 0).all()
    assert len(trace.metadata["devices"]) == devices
    assert daydream.replay(trace).max_error < 0.01


def test_a_public_training_profile_is_bound_by_its_gpu():
    trace = import_trace([shared_trace("formats/jax/mi300x_jax_te_fused_attn_training.xplane.pb.gz")])

    assert {"forward", "backward"} <= set(trace.values("phase"))
    assert daydream.explain(trace).bound.value == "GPU"  # busy 93 % of the steps


def test_lines_of_code_are_jaxs_own(trace):
    ranking = daydream.rank(trace, pairs=0)
    lines = [each.code for each in ranking.optimizations if each.code]

    assert lines
    assert not [line for line in lines if "torch" in line or "DataLoader(dataset" in line]
    answer = daydream.whatif(trace, "scale", on="gpu", factor=0.5)
    assert framework_of(answer.replay.graph) == "jax"
    assert code_of("tf32", "jax") == 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")'
    assert code_of("fused-norm", "jax") is None  # XLA fuses by itself: no line is better than torch's
    assert "torch" in (code_of("fused-norm") or "")


def test_every_line_of_jax_belongs_to_an_optimization():
    assert set(IN_JAX) <= set(names())


def test_threads_of_xlas_pool_complete_the_steps_of_a_recording_of_the_cpu():
    replay = daydream.replay(import_trace([CPU]))
    assert len(replay.steps) == 3  # all but the first, though the last operators run on threads of the pool
    assert replay.max_error < 0.001


def hlo() -> bytes:
    """A program: a convert to float32, and a fusion to float32 of a product of two bfloat16 matrices."""

    def shape(kind: int) -> bytes:
        return field(2, kind)

    def instruction(name: str, opcode: str, kind: int, number: int, *, takes=(), calls=()) -> bytes:
        parts = field(1, name) + field(2, opcode) + field(3, shape(kind)) + field(35, number)
        return parts + b"".join(field(36, one) for one in takes) + b"".join(field(38, one) for one in calls)

    inner = [
        instruction("a", "parameter", 16, 1),
        instruction("b", "parameter", 16, 2),
        instruction("dot.9", "dot", 11, 3, takes=(1, 2)),
    ]
    outer = [
        instruction("convert.2", "convert", 11, 4),
        instruction("gemm_fusion_dot.1", "fusion", 11, 5, calls=(77,)),
        instruction("pair", "tuple", 13, 6),
    ]
    computations = [
        field(3, b"".join(field(2, one) for one in inner) + field(5, 77)),
        field(3, b"".join(field(2, one) for one in outer) + field(5, 78)),
    ]
    return field(1, field(1, "jit_step") + b"".join(computations))


def metadata_plane(proto: bytes) -> tuple[bytes, Plane]:
    plane = PlaneWriter("/host:metadata")
    stat = field(1, 1) + field(6, proto)  # a stat of bytes: `Hlo Proto`
    names = field(5, field(1, 1) + field(2, field(1, 1) + field(2, "Hlo Proto")))
    program = field(4, field(1, 7) + field(2, field(1, 7) + field(2, "jit_step(7)") + field(5, stat)))
    data = field(1, plane.done() + names + program)
    return data, next(planes(data))


def test_the_programs_of_a_profile_tell_element_types():
    data, plane = metadata_plane(hlo())
    types = types_of(data, plane)
    assert types["jit_step", "convert.2"] == "float32"
    assert types["jit_step", "gemm_fusion_dot.1"] == "bfloat16"  # what it multiplies, not what it returns
    assert ("jit_step", "pair") not in types
    assert kernel_of("gemm_fusion_dot.1") == "gemm_fusion_dot_1"


def test_a_damaged_program_is_none():
    for cut in range(0, len(hlo()), 7):
        data, plane = metadata_plane(hlo()[:cut])
        assert isinstance(types_of(data, plane), dict)


@pytest.mark.parametrize(
    ("name", "kernel", "dtype"),
    [
        ("a10g_conv2d", "gemm_fusion_dot_1", "float32"),  # in a CUDA graph: told by the kernel's name
        ("mi300x_jax_te_fused_attn_training", "gemm_fusion_dot", "bfloat16"),
        ("mi300x_jax0.8_conv_8gpu", "loop_transpose_fusion", "bfloat16"),
    ],
)
def test_public_profiles_tell_element_types(name, kernel, dtype):
    trace = import_trace([shared_trace(f"formats/jax/{name}.xplane.pb.gz")])
    rows = zip(trace.values("name"), trace.values("dtype"), trace.is_kind("kernel"), strict=True)
    found = {told for own, told, is_kernel in rows if own == kernel and is_kernel}
    assert found == {dtype}
