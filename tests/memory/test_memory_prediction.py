"""The peak of a trace, whether it fits, and what a change makes of it."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import PARAMETER, SGD, Recording, training_step
from shared import shared_trace, view_text
from two_blocks import ALWAYS, LAYER, WEIGHT, predict_memory, two_blocks

import daydream
from daydream.errors import GraphError, NotApplicableError, TraceError
from daydream.memory import STEP, resize_input
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    COLUMNS,
    KINDS,
    OWN_ERROR,
    Allocations,
)
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import CONTEXT, MemoryChange, MemoryPrediction, memory_after
from daydream.memory.report import idle, memory_of, operator_footprints
from daydream.memory.result import DeviceMemory, MemoryReport
from daydream.predict.memory import answer_of, largest
from daydream.report.page import page
from daydream.report.perfetto import events as timeline_events
from daydream.report.views.memory import memory_line
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

# Peak memory of what-ifs: verdicts, ranges, those that cannot say, mistakes in a user's file, laws


KEYS = [
    "before_bytes",
    "after_bytes",
    "low_bytes",
    "high_bytes",
    "before_reserved_bytes",
    "after_reserved_bytes",
    "capacity_bytes",
    "fits",
]


@pytest.fixture(scope="module")
def trace():
    return two_blocks()


def table(rows, device=-1):
    """Allocations of (bytes, begin, end, kind), asked for by no row of a trace."""
    trace = daydream.Trace({"name": np.empty(0, np.int64)}, {"name": []}, {})
    columns = {name: np.full(len(rows), -1) for name in COLUMNS}
    columns |= {name: np.zeros(len(rows), np.int64) for name in ("rank", "repeat")}
    for place, (nbytes, begin, end, kind) in enumerate(rows):
        columns["bytes"][place] = columns["recorded_bytes"][place] = nbytes
        columns["begin"][place], columns["end"][place] = begin, end
        columns["kind"][place] = KINDS.index(kind)
    columns["device"][:] = device
    return Allocations(trace, columns)


def prediction(**figures):
    known = {
        **dict.fromkeys(KEYS[:4], 10),
        "before_reserved_bytes": None,
        "after_reserved_bytes": None,
        "capacity_bytes": None,
        "device": "cpu",
    }
    return MemoryPrediction(**{**known, **figures})


# The verdict ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "fits"),
    [
        ({}, None),  # no capacity
        ({"capacity_bytes": 10}, True),
        ({"capacity_bytes": 9}, False),
        ({"capacity_bytes": 12, "high_bytes": 13}, None),
        ({"capacity_bytes": 9, "low_bytes": 8}, None),
        # what is reserved and not used may be too much, and may be given back
        ({"capacity_bytes": 12, "after_reserved_bytes": 15}, None),
        ({"capacity_bytes": 15, "after_reserved_bytes": 15}, True),
        # CUDA's context stands beside it on a GPU
        ({"device": "cuda:0", "capacity_bytes": 10 + CONTEXT[1]}, True),
        ({"device": "cuda:0", "capacity_bytes": 10 + CONTEXT[1] - 1}, None),
        ({"device": "cuda:0", "capacity_bytes": 10 + CONTEXT[0] - 1}, False),
        ({"device": "rank 1, cuda:0", "capacity_bytes": 10 + CONTEXT[0] - 1}, False),
    ],
)
def test_it_fits_does_not_or_is_too_close_to_tell(figures, fits):
    assert prediction(**figures).fits is fits


def test_the_line_of_a_whatif():
    def line(**figures):
        (line,) = memory_line(daydream.predict.memory.MemoryAnswer(prediction(**figures)))
        return str(line.text)

    gib = 2**30
    sizes = {"before_bytes": 12 * gib, "after_bytes": 8 * gib, "low_bytes": 8 * gib, "high_bytes": 8 * gib}
    assert line(**sizes) == "peak memory 12.00 -> 8.00 GiB"
    assert line(**sizes, capacity_bytes=24 * 10**9) == "peak memory 12.00 -> 8.00 GiB, fits 24 GB"
    assert line(**sizes, capacity_bytes=8 * 10**9) == "peak memory 12.00 -> 8.00 GiB, does not fit in 8 GB"
    close = {**sizes, "device": "cuda:0", "capacity_bytes": 9 * 10**9}
    assert line(**close).endswith("too close to tell in 9 GB with CUDA's context of 300 to 600 MiB")
    doubted = {**sizes, "low_bytes": 7 * gib, "capacity_bytes": 8 * 10**9}
    assert line(**doubted) == "peak memory 12.00 -> 8.00 GiB (7.00 to 8.00), too close to tell in 8 GB"


def test_the_worst_of_several_ranks_counts():
    held = table([(100, 0, STEP, "temporary"), (200, 0, STEP, "temporary")])
    held["rank"][1] = 1

    found = memory_after(held, [])

    assert (found.device, found.after_bytes) == ("rank 1, cpu", 200)


def test_a_change_is_judged_in_steps_whose_backward_pass_was_recorded():
    """Step 0 frees 100 in its backward pass, where 2 more are held; of step 1 the recording lost that."""
    held = table(
        [
            (100, 0, 3 * STEP, "activation"),
            (2, 2 * STEP, 4 * STEP, "temporary"),
            (105, 5 * STEP, AFTER, "activation"),
        ]
    )
    held["step"][:] = 0, 0, 1
    held["phase"][:] = [PHASES.index(phase) for phase in ("forward", "backward", "forward")]

    def free(held):
        held["end"][0] = STEP

    found = memory_after(held, [MemoryChange("free", free)])

    # 105 are held now, 102 in step 0, of which 100 stay without the change's 2.
    assert (found.before_bytes, found.after_bytes) == (105, 103)


def test_without_a_backward_pass_every_step_is_whole():
    held = table([(100, 0, STEP, "activation"), (120, 2 * STEP, AFTER, "activation")])
    held["step"][:] = 5, 6  # of inference

    def halve(held):
        held["bytes"][1] = 60

    found = memory_after(held, [MemoryChange("halve", halve)])
    assert (found.before_bytes, found.after_bytes) == (120, 100)


# What cannot be said --------------------------------------------------------------------------------


def test_a_change_that_does_not_say_leaves_memory_unknown(trace):
    found = daydream.whatif(trace, lambda graph: graph.select(phase="optimizer").scale(0.5))

    assert found.memory is None
    assert found.to_json()["memory"] is None
    assert any("cannot say what that does to memory." in note for note in found.notes)
    with pytest.raises(GraphError, match="metaflow cannot say what it does to memory"):
        predict_memory(trace, "metaflow", {"layers": "*"})


def test_a_trace_without_memory_says_nothing_and_is_refused(trace):
    without = daydream.Trace(trace.columns, trace.texts, trace.metadata)

    found = daydream.whatif(without, "fused-adam")

    assert found.memory is None
    assert not any("memory" in note for note in found.notes)
    with pytest.raises(TraceError, match="no memory events"):
        predict_memory(without, "fused-adam")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda held: held.columns.pop("bytes"), "left a broken table"),
        (lambda held: held["begin"].fill(np.nan), "failed: ValueError"),
        (lambda held: held["bytes"].fill(-5), "left allocations of less than no bytes"),
        (lambda held: 1 / 0, "failed: ZeroDivisionError"),
        (lambda held, nothing: None, "failed: TypeError"),
        (lambda held: held.where(kind="paramter"), "no memory is of the kind 'paramter'"),
    ],
)
def test_mistakes_of_a_file_are_told_in_a_line(edit, said, trace):
    with pytest.raises(GraphError, match=said):
        memory_after(allocations(trace), [MemoryChange("mine", edit)])
    unsaid = answer_of(daydream.build(trace), [MemoryChange("mine", edit)], None).unsaid
    assert said in unsaid
    assert "\n" not in unsaid


# Ranges ---------------------------------------------------------------------------------------------


# Where it is told -----------------------------------------------------------------------------------


def test_the_largest_batch_is_the_last_that_fits(trace):
    # of n samples 5 n times 32 bytes, beside what is held always and the loss; below, the optimizer's peak
    capacity = round((ALWAYS + 4 + 5 * 32 * 100) * (1 + OWN_ERROR)) + 31

    found = largest(trace, "batch", capacity=capacity)

    # too close to tell from 101 on, until that less what it may be off is too large: 17,910 bytes
    assert (found.recorded, found.fits) == (2, 100)
    assert found.too_large == 105
    assert found.memory.after_bytes == ALWAYS + 4 + 5 * 32 * 100
    assert found.memory.fits is True


def test_a_limit_needs_a_capacity_and_shapes():
    with pytest.raises(GraphError, match="--capacity"):
        largest(two_blocks())
    with pytest.raises(NotApplicableError, match="sequence length"):
        largest(two_blocks(), "sequence", capacity=10**9)


# Laws -----------------------------------------------------------------------------------------------


@st.composite
def tables(draw):
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        begin = draw(st.sampled_from([BEFORE, *range(0, 40 * STEP, STEP)]))
        end = draw(st.sampled_from([AFTER, *range(41 * STEP, 60 * STEP, STEP)]))
        if begin > BEFORE and draw(st.booleans()):
            end = begin + draw(st.integers(1, 5)) * STEP + STEP // 2
        rows.append((draw(st.integers(1, 10**6)), begin, end, draw(st.sampled_from(KINDS))))
    held = table(rows, device=draw(st.sampled_from([-1, 0])))
    held.resize(np.ones(len(held), bool), held["bytes"].copy())
    held["recorded_bytes"][:] = held["bytes"]
    held["phase"][:] = draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    held["step"][:] = 0
    return held


def peak(held):
    ((rank, device),) = held.devices() or [(0, -1)]
    return held.peak(rank, device)[0] if len(held) else 0


@given(tables(), st.data())
@settings(deadline=None)
def test_to_remove_anything_never_raises_the_peak(held, data):
    before = peak(held)
    held.remove(np.array(data.draw(st.lists(st.booleans(), min_size=len(held), max_size=len(held)))))
    assert peak(held) <= before


@given(tables(), st.floats(0.1, 4))
@settings(deadline=None)
def test_the_expected_peak_lies_in_the_range(held, factor):
    found = memory_after(held, [MemoryChange("mine", lambda held: resize_input(held, None, factor))])
    assert found.low_bytes <= found.after_bytes <= found.high_bytes


# What `daydream memory --trace` answers: peaks by hand, sums that add up, traces of other people


# file -> MiB at most allocated and reserved, as the recording's totals have them
WITH_TOTALS = {
    "a100_particle_transformer_forward_batch128": (3161.2, 3226.0),
    "a100_particle_transformer_forward_batch8": (59.2, 248.0),
    "h100_bert_small_inference": (96.6, 116.0),
    "h100_qwen_0.5b_inference": (1991.8, 2508.0),
    "h100_vit_inference": (220.6, 234.0),
    "mi300x_bert_small_inference": (139.6, 214.0),
    "mi300x_qwen_0.5b_inference": (2116.2, 2416.0),
    "mi300x_vit_inference": (260.0, 278.0),
}
OF_2021 = {"v100_resnet50_loader_workers_0": 2662.3, "v100_resnet50_loader_workers_4": 2662.2}


def public(name):
    return daydream.load(shared_trace(f"kineto/{name}.json.gz"))


@pytest.fixture
def training(tmp_path):
    recording = Recording()
    for number in (3, 4, 5):
        training_step(recording, number)
    trace = recording.trace(tmp_path)
    trace.metadata |= {"parameters": [PARAMETER], "optimizers": [SGD]}
    return trace


def test_the_peak_says_when_and_who(training):
    report = memory_of(training, capacity=10**9)

    (device,) = report.devices
    assert device.peak_allocated_bytes == 4000 + 4000 + 64 + 2048 + 8 + 4000 + 2000
    assert device.recorded_allocated_bytes == 64 + 2048 + 8 + 4000 + 2000
    assert (device.device, device.peak_step, device.peak_phase) == ("cpu", "ProfilerStep#3", "backward")
    assert dict(device.by_kind) == {
        "gradient": 4000,
        "optimizer_state": 4000,
        "parameter": 4000,
        "activation": 2056,
        "temporary": 2000,
        "input": 64,
    }
    assert dict(device.by_phase) == {"held before": 8000, "backward": 6000, "forward": 2112, "loss": 8}
    assert dict(device.by_layer) == {"a": 8000 + 2048, "no layer": 6000 + 64 + 8}
    assert device.capacity_bytes == 10**9
    assert report.outside_bytes is None
    json.dumps(report.to_json())


@pytest.mark.parametrize("name", [*WITH_TOTALS, *OF_2021])
def test_peaks_of_public_traces_and_their_parts_add_up(name):
    report = memory_of(public(name))
    first = report.devices[0]
    assert first.recorded_allocated_bytes == first.peak_allocated_bytes
    for each in report.devices:
        for parts in (each.by_kind, each.by_phase, each.by_layer):
            assert sum(parts.values()) == each.peak_allocated_bytes


changes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10**6), st.integers(-1, 1)), max_size=60)


@given(changes)
def test_sums_add_up_to_the_peak_of_any_history(asked):
    """Each request allocates at an address of a device that is free, or frees what lies there."""
    held = {}
    rows = []
    for address, asked_bytes, device in asked:
        nbytes = asked_bytes if device < 0 else -(-asked_bytes // 512) * 512
        amount = -held.pop((device, address)) if (device, address) in held else nbytes
        if amount > 0:
            held[device, address] = nbytes
        rows.append((address, amount, device))
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    events = MemoryEvents(
        {"time_ns": np.arange(len(rows)), "address": columns[0], "bytes": columns[1], "device": columns[2]}
    )
    if not rows:
        return
    trace = Trace({}, {}, memory=events)

    for each in memory_of(trace).devices:
        device = -1 if each.device == "cpu" else int(each.device[5:])
        running = np.cumsum(np.where(columns[2] == device, columns[1], 0))
        assert each.peak_allocated_bytes == each.recorded_allocated_bytes == running.max()
        for parts in (each.by_kind, each.by_phase, each.by_layer):
            assert sum(parts.values()) == each.peak_allocated_bytes
        assert sum(holder.bytes for holder in each.holders) == each.peak_allocated_bytes


def test_names_from_a_trace_cannot_steer_a_terminal(tmp_path):
    recording = Recording()
    recording.inside("aten::mm\x1b[31m", ("a", 512), "a")
    assert "\x1b" not in str(view_text(memory_of(recording.trace(tmp_path)), verbose=True))


def test_timelines_and_reports_show_it(training):
    replay = daydream.replay(training)
    counters = [each for each in timeline_events(replay) if each["name"] == "memory: cpu"]
    assert (
        max(each["args"]["value"] for each in counters) == memory_of(training).devices[0].peak_allocated_bytes
    )
    assert 'id="memory-chart"' in page(replay, memory=memory_of(training))
    assert 'id="memory-chart"' not in page(replay)


# Recorded peaks of the public traces: exact at every event where totals were recorded


def test_the_headline_is_what_the_allocator_recorded():
    mib = 1 << 20
    device = DeviceMemory(
        rank=0,
        device="cuda:0",
        capacity_bytes=2048 * mib,
        peak_allocated_bytes=910 * mib,
        peak_reserved_bytes=1000 * mib,
        recorded_allocated_bytes=900 * mib,
        recorded_reserved_bytes=1000 * mib,
    ).having(holders=())

    lines = view_text(MemoryReport((device,))).splitlines()
    assert lines[:3] == [
        "cuda:0: peak 900.0 MiB allocated, 1,000.0 MiB reserved: fits in 2 GiB (1,048.0 MiB left)",
        "  needs 1,300 to 1,600 MiB of the GPU, with CUDA's context of 300 to 600 MiB",
        "  replayed: 910.0 MiB allocated, what predictions and the tables below are about",
    ]
    changed = device.but(peak_reserved_bytes=950 * mib).having(holders=())
    other = view_text(MemoryReport((changed,))).splitlines()
    assert other[0].startswith("cuda:0: peak 910.0 MiB allocated, 950.0 MiB reserved: fits")
    assert other[2] == "  as recorded: 900.0 MiB allocated, 1,000.0 MiB reserved"


# What operators touch, what layers need, what waits: worked out by hand


FLOAT = ["float", "float"]


@pytest.fixture
def layers(tmp_path):
    """A linear layer whose output waits while another operator works, and is then used."""
    recording = Recording()
    start = recording.now
    recording.inside("aten::randn", ("in", 400))
    recording.layer(
        "a", ("out", 800), op="aten::linear", **{"Input Dims": [[10, 10], [20, 10]], "Input type": FLOAT}
    )
    recording.inside("aten::relu", ("peak", 8000), "peak", **{"Input Dims": [[1000]], "Input type": FLOAT})
    recording.now += 30
    recording.inside("aten::sum", **{"Input Dims": [[10, 20]], "Input type": FLOAT})
    recording.between("out", "in")
    recording.range("ProfilerStep#1", start)
    return recording.trace(tmp_path)


def test_a_tensor_waits_from_its_last_to_its_next_possible_use(layers):
    held = allocations(layers)

    found = {each.name: each for each in idle(held, layers.memory, 0, -1)}

    # 800 bytes: linear is given as many (its weight) until 20 us, the sum from 60 us on.
    assert found["aten::linear a"].idle_ns == 40_000
    assert found["aten::linear a"].never_again == 0
    assert found["aten::linear a"].gigabytes_per_second == 2 * 800 / 40_000
    # 400 bytes: linear reads them until 20 us; Python frees them at 73 us.
    assert found["aten::randn"].never_again == 1
    assert found["aten::randn"].idle_ns == 73_000 - 20_000


def test_sweeps_and_scaling_tell_memory(trace):
    found = daydream.sweep(trace, "batch-size", {"factor": [2.0, 32.0]}, capacity=3000)
    peaks = {row["factor"]: (row["peak_memory_bytes"], row["fits"]) for row in found.rows()}
    assert peaks == {
        2.0: (ALWAYS + 2 * LAYER + 4 + 4 * WEIGHT, True),
        32.0: (ALWAYS + 4 + 5 * 32 * LAYER, False),
    }

    rows = daydream.scaling(trace, [1, 2], bandwidth=10.0, capacity=3000).rows
    now = ALWAYS + LAYER + 4 + 4 * WEIGHT
    assert [row.memory.after_bytes for row in rows] == [now, now + 2 * WEIGHT]
    assert [row.to_json()["memory"]["fits"] for row in rows] == [True, False]


def test_an_operator_touches_its_tensors_and_what_it_asks_for(layers):
    found = {each.name: each for each in operator_footprints(allocations(layers))}

    assert found["aten::linear"].footprint_bytes == 4 * 100 + 4 * 200 + 800
    assert found["aten::linear"].asked_bytes == 800
    assert found["aten::relu"].footprint_bytes == 4000 + 8000
    assert found["aten::sum"].footprint_bytes == 800
