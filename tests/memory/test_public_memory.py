"""Recorded peaks of the public traces: exact at every event where totals were recorded."""

from __future__ import annotations

import numpy as np
import pytest
from shared import shared_trace

import daydream
from daydream.memory.pairing import paired
from daydream.memory.recorded import recorded_memory

MIB = 1 << 20

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


@pytest.mark.parametrize("name", WITH_TOTALS)
def test_what_is_held_is_the_recorded_total_at_every_event_and_its_peak_is_told(name):
    trace = daydream.load(shared_trace(f"kineto/{name}.json.gz"))
    own = np.flatnonzero(trace.memory["device"] == 0)

    held = paired(trace, trace.memory)

    places, totals = held.held(0, 0)
    assert places[1:].tolist() == own.tolist()
    assert totals[1:].tolist() == trace.memory["allocated_bytes"][own].tolist()
    assert held.notes == []
    found = recorded_memory(trace.memory)[0]
    told = (round(found.peak_allocated_bytes / MIB, 1), round((found.peak_reserved_bytes or 0) / MIB, 1))
    assert (found.device, told) == ("cuda:0", WITH_TOTALS[name])
    assert not [note for note in trace.metadata["notes"] if "memory" in note]


@pytest.mark.parametrize("name", OF_2021)
def test_traces_of_2021_have_sizes_alone(name):
    trace = daydream.load(shared_trace(f"kineto/{name}.json.gz"))
    on_gpu = trace.memory["device"] == 0

    found = recorded_memory(trace.memory)[0]
    held = paired(trace, trace.memory)

    assert set(trace.memory["address"].tolist()) == {-1}
    assert round(found.peak_allocated_bytes / MIB, 1) == OF_2021[name]
    assert held.peak(0, 0)[0] == found.peak_allocated_bytes
    assert held.held(0, 0)[1][-1] == trace.memory["bytes"][on_gpu].sum() == 0  # all was freed again
    assert found.since_start
