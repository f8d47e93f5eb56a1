"""What `daydream memory --trace` answers: peaks by hand, sums that add up, traces of other people."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import PARAMETER, SGD, Recording, training_step
from shared import shared_trace
from view_text import view_text

import daydream
from daydream.memory.report import memory_of
from daydream.memory.result import DeviceMemory, MemoryReport
from daydream.report.html.page import page
from daydream.report.perfetto import events as timeline_events
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.trace import Trace

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
        "gradient": 4000, "optimizer_state": 4000, "parameter": 4000, "activation": 2056, "temporary": 2000,
        "input": 64,
    }  # fmt: skip
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
    held: dict[tuple[int, int], int] = {}
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


def test_ranks_and_devices_of_any_number_are_told_apart():
    columns = {
        "time_ns": np.arange(3), "bytes": np.array([512, 1024, 2048]), "address": np.array([1, 1, 1]),
        "rank": np.array([0, 2**31 - 1, 2**31 - 1]), "device": np.array([0, 0, 2**31 - 1]),
    }  # fmt: skip
    trace = Trace({}, {}, memory=MemoryEvents(columns))

    found = {(each.rank, each.device): each.peak_allocated_bytes for each in memory_of(trace).devices}

    assert found == {(0, "cuda:0"): 512, (2**31 - 1, "cuda:0"): 1024, (2**31 - 1, f"cuda:{2**31 - 1}"): 2048}


# Recorded peaks of the public traces: exact at every event where totals were recorded


def test_the_headline_is_what_the_allocator_recorded():
    mib = 1 << 20
    device = DeviceMemory(
        rank=0, device="cuda:0", capacity_bytes=2048 * mib, peak_allocated_bytes=910 * mib,
        peak_reserved_bytes=1000 * mib, recorded_allocated_bytes=900 * mib,
        recorded_reserved_bytes=1000 * mib,
    ).having(holders=())  # fmt: skip

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
