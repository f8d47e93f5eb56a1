"""Iterations from the launch sequence: on sequences written out, on random ones, and on shared traces."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from daydream.collect.derive.build import derive
from daydream.collect.derive.periods import find_steps_by_period
from daydream.collect.derive.recording import Recording

SHARED = Path(__file__).parents[3] / "shared" / "traces"
EVERY, CALL = 100, 40  # ns between launch calls, and in one


def launches(works, *, pauses=None, optimizer=None):
    """Return a recording of one thread that launches these works; `pauses` are ns idled before launches."""
    count = len(works)
    step = np.full(count, EVERY)
    for launch, pause in (pauses or {}).items():
        step[launch] += pause
    start = np.cumsum(step)
    names = [f"kernel {work}" for work in range(max(works, default=0) + 1)]
    if optimizer is not None:
        names[optimizer] = "fused_adam"
    columns = {
        "kind": np.repeat([0, 1], count),
        "name": np.concatenate([np.full(count, len(names)), np.asarray(works, int)]),
        "start_ns": np.concatenate([start, start + 20]),
        "duration_ns": np.repeat([CALL, 50], count),
        "correlation": np.tile(np.arange(count), 2),
    }
    return Recording(columns, {"kind": ["runtime", "kernel"], "name": [*names, "cudaLaunchKernel"]})


def begins(works, **options):
    """Return the launches at which the iterations begin that are found."""
    recording = launches(works, **options)  # type: ignore[arg-type]
    return first_launches(recording, find_steps_by_period(recording), len(works))


def first_launches(recording, ranges, count):
    """Return the first launch in each range; a range begins where the one before it ends."""
    return np.searchsorted(recording["start_ns"][:count], [begin for begin, _ in ranges]).tolist()


def every(period, first, repeats):
    return list(range(first, first + period * repeats, period))


def test_ranges_begin_with_the_first_launch_and_follow_one_another():
    #  warm-up 9 9 9 | 0 1 2 | 0 1 2 | 0 1 2 | tail 8
    works = [9, 9, 9, *[0, 1, 2] * 3, 8]

    ranges = find_steps_by_period(launches(works, optimizer=2))

    assert ranges == [
        (4 * EVERY, 6 * EVERY + CALL),
        (6 * EVERY + CALL, 9 * EVERY + CALL),  # from the end of the one before: what prepares its launches
        (9 * EVERY + CALL, 12 * EVERY + CALL),  # the last one ends with its last call: other work follows
    ]


def test_two_repeats_are_no_period():
    assert begins([3, *[0, 1, 2] * 4, 4] * 2, pauses={14: 1000}) == []
    assert begins([0, 1, 2] * 2, pauses={3: 1000}, optimizer=2) == []
    assert begins([0, 1] * 4 + [2], optimizer=2) == []  # one optimizer for four: micro-batches


def test_a_pass_alike_before_the_loop_is_a_step_of_another_kind():
    #  a prefill 9 0 1 2 of which one kernel differs and takes most of the time, four decodes
    recording = launches([9, 0, 1, 2, *[3, 0, 1, 2] * 4], pauses=dict.fromkeys(every(4, 4, 4), 1000))
    recording.columns["duration_ns"][20] = 100_000

    ranges = find_steps_by_period(recording)

    assert first_launches(recording, ranges, 20) == every(4, 0, 5)
    assert recording.metadata == {"two_kinds": True}


def test_work_that_does_not_repeat_has_no_iterations():
    assert begins(np.random.default_rng(3).integers(0, 50, 5000).tolist()) == []


def test_a_phase_between_does_not_end_the_search():
    #  ten iterations, an evaluation, ten iterations
    rng = np.random.default_rng(6)
    iteration, evaluation = rng.integers(0, 30, 200).tolist(), rng.integers(30, 60, 700).tolist()
    recording = launches([*iteration * 10, *evaluation, *iteration * 10])

    ranges = find_steps_by_period(recording)

    start = recording["start_ns"]
    assert first_launches(recording, ranges, 4700) == every(200, 0, 10) + every(200, 2700, 10)
    assert ranges[9][1] == start[1999] + CALL  # the last one before the evaluation does not reach into it


def test_an_iteration_begins_where_the_cpu_pauses_longest():
    #  the recording starts inside an iteration: 3 4 | 0 1 2 3 4 | 0 1 2 3 4 | ...
    works = [3, 4, *[0, 1, 2, 3, 4] * 6, 0, 1]

    assert begins(works, pauses=dict.fromkeys(every(5, 2, 7), 1000)) == every(5, 2, 6)


def with_calls(recording, start_ns, duration_ns):
    """Add runtime calls that launch nothing."""
    count = len(start_ns)
    for name, values in {
        "kind": np.zeros(count, int), "name": np.full(count, 3), "start_ns": np.asarray(start_ns),
        "duration_ns": np.full(count, duration_ns), "correlation": np.arange(900, 900 + count),
    }.items():  # fmt: skip
        recording.columns[name] = np.append(recording.columns[name], values)
    return recording


def test_the_last_range_holds_as_many_calls_behind_its_launches_as_others():
    #  0 1 2 s | 0 1 2 s | 0 1 2 s | 0 1 2 s s: the last synchronize of all is the profiler's
    ends = [turn * 3 * EVERY + CALL for turn in range(1, 5)]
    recording = with_calls(launches([0, 1, 2] * 4), [*(end + 5 for end in ends), ends[-1] + 700], 30)

    assert [end for _, end in find_steps_by_period(recording)] == [end + 35 for end in ends]


def test_without_a_device_the_outermost_operators_tell_the_iterations():
    #  forward 0, linear 1 with addmm 2 in it, backward 3
    recording = launches([0, 1, 3] * 4)
    recording.texts = {"kind": ["runtime", "operator"], "name": ["x", "y", "z", "AddmmBackward0", "call"]}
    start, kind = recording.columns["start_ns"], recording.columns["kind"]
    inner = {"kind": [1], "name": [2], "start_ns": [start[13] + 5], "duration_ns": [9], "correlation": [-1]}
    recording.columns = {
        name: np.append(column[kind == 1], inner[name]) for name, column in recording.columns.items()
    }

    assert [begin for begin, _ in find_steps_by_period(recording)] == [120, 370, 670, 970]
    recording.texts["name"][3] = "z"  # nothing is trained: layers, maybe
    assert find_steps_by_period(recording) == []


@settings(deadline=None)
@given(
    body=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    repeats=st.integers(3, 12),
    head=st.permutations(range(10, 40)),
    tail=st.permutations(range(40, 70)),
    share=st.floats(0, 1),
)
def test_a_repeated_body_with_a_launch_of_its_own_gives_back_its_boundaries(body, repeats, head, tail, share):
    assume(1 in [body.count(launch) for launch in body])
    other = min(len(body) * repeats, 30)
    head, tail = head[: int(other * share)], tail[: int(other * (1 - share))]

    found = begins(head + body * repeats + tail, optimizer=body[0])

    assert found == every(len(body), len(head), repeats)


def shared(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the shared trace {name} is not here")
    if ".sqlite" in name:
        from collect.nsys_database import read_nsys as read
    else:
        from daydream.collect.importers.kineto.reader import read_kineto as read
    return read(path)


def launches_in(recording, ranges):
    device = recording.is_kind("kernel", "memcpy", "memset", "collective")
    launched = set(recording["correlation"][device].tolist())
    host = recording.is_kind("runtime") & np.isin(recording["correlation"], list(launched))
    start = recording["start_ns"][host]
    return [int(((start >= begin) & (start < end)).sum()) for begin, end in ranges]


def marked(recording, pattern):
    rows = np.flatnonzero(recording.is_kind("annotation") & recording.named(re.compile(pattern)))
    return np.sort(recording["start_ns"][rows])


@pytest.mark.parametrize(
    ("name", "launched"),
    [
        ("nsys/a100_gpt2.7b_forward_eager.sqlite.gz", [1_832] * 10),
        ("nsys/a100_gpt2.7b_forward_compiled_cuda_graph.sqlite.gz", [4] * 10),
        # its ten forward passes are a second loop with less work; only one loop is found
        ("nsys/rtx3070ti_transformer_training_nvtx.sqlite.gz", [2_236] * 5),
        ("kineto/rtx2080ti_linear_40_iterations.json.gz", [261] * 39),  # the first was cut: 177 launches
        ("kineto/rtx2080ti_resnet_30_iterations.json.gz", [335] * 30),
        ("kineto/gpu_user_annotation.json.gz", [28] * 5),
        ("kineto/a100_resnet_ddp_rank0of2.json.gz", [1_258] * 3),
        ("kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz", [895] * 3),
        ("kineto/v100_recsys_rank1of2_copy_waits.json.gz", [1_664] * 6),
    ],
)
def test_shared_training_traces_fall_into_their_iterations(name, launched):
    recording = shared(name)

    ranges = find_steps_by_period(recording)

    assert launches_in(recording, ranges) == launched
    steps = marked(recording, "^ProfilerStep#")
    if len(steps):  # each found range lies in the step it stands for
        middle = np.array([(start + end) // 2 for start, end in ranges])
        assert (np.searchsorted(steps, middle, side="right") == np.arange(1, len(ranges) + 1)).all()


LAYERS = [*[8, 9], *[0, 1, 2, 3] * 6, 7]  # an embedding 8 9, six equal layers, a head 7


def with_operators(works, *, pauses=None):
    recording = launches(works, pauses=pauses)
    recording.texts["kind"].append("operator")
    for name, value in {"kind": 2, "name": 0, "start_ns": 90, "duration_ns": 5, "correlation": -1}.items():
        recording.columns[name] = np.append(recording.columns[name], value)
    return recording


def test_layers_of_one_pass_are_no_iterations():
    assert find_steps_by_period(with_operators(LAYERS)) == [(EVERY, len(LAYERS) * EVERY + CALL)]
    assert find_steps_by_period(launches([1, *LAYERS[2:-1]])) == []  # nobody knows that nothing is trained


def test_a_loop_is_no_pass():
    paused = dict.fromkeys(range(2, 26, 4), 1000)  # the CPU pauses before each iteration
    assert len(find_steps_by_period(with_operators(LAYERS, pauses=paused))) == 6
    begun_inside = [2, 3, *[0, 1, 2, 3] * 6]
    assert len(find_steps_by_period(with_operators(begun_inside))) == 6
    one_pass = [*[4, 5, 6] * 6, 7]
    assert len(find_steps_by_period(with_operators([8, 9, *one_pass * 4]))) == 4


def test_where_nothing_tells_a_loop_from_layers_none_is_claimed():
    recording = with_operators(LAYERS)
    recording.texts["name"][3] = "gemm_wgrad"
    assert find_steps_by_period(recording) == []


def test_the_shared_inference_traces_are_one_pass():
    for name in ("h100_bert_small", "mi300x_vit"):
        assert len(find_steps_by_period(shared(f"kineto/{name}_inference.json.gz"))) == 1


@pytest.mark.parametrize(
    ("name", "count", "typical_ms"),
    [
        ("symptoms/s23_no_profilerstep.json.gz", 4, 62.4),
        ("cpu_100_training_iterations_no_markers.json.gz", 100, 46.5),
        ("nsys_rtx5000ada_laptop_5_forward_passes.sqlite.gz", 5, 31.8),
        ("a800_prefill_and_5_decodes_cupti.json.gz", 6, 14.0),
        ("a4000_swin_forward_cuda_only_cold.json.gz", 1, 11_980),
    ],
)
def test_the_shared_cases_have_their_steps(name, count, typical_ms):
    steps = derive(shared(f"cases/{name}")).metadata["steps"]

    assert len(steps) == count
    covered = [step["measured_ns"] / 1e6 for step in steps if step["covered"]]
    assert np.median(covered) == pytest.approx(typical_ms, rel=0.01)
