"""Nsight Systems exports of real programs, where they are at hand: counts, names and full queues."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from nsys_database import names_of, read_nsys, rows_of

from daydream.collect.importers.nsys import split_ranks

SHARED = Path(__file__).parents[3] / "shared" / "traces" / "nsys"


def shared(name):
    path = SHARED / f"{name}.sqlite.gz"
    if not path.exists():
        pytest.skip(f"the shared trace {name} is not here")
    return path


def kinds_and_names(recording):
    return Counter(kind for (kind,) in rows_of(recording, "kind"))


def in_flight(recording):
    """Return the most launched, unfinished tasks on the stream, at the start and at the return of calls."""
    calls = {row[0]: row[1:] for row in rows_of(recording, "correlation", "start_ns", "duration_ns", "kind")
             if row[3] == "runtime"}  # fmt: skip
    device = recording.is_kind("kernel", "memcpy", "memset")
    launch = np.array([calls[code][:2] for code in recording["correlation"][device].tolist()])
    end = np.sort((recording["start_ns"] + recording["duration_ns"])[device])
    begin, finish = np.sort(launch[:, 0]), np.sort(launch.sum(axis=1))
    launched = np.arange(1, len(begin) + 1)
    return tuple(int((launched - np.searchsorted(end, time, side="right")).max()) for time in (begin, finish))


def test_the_shared_a100_trace_has_its_counts_and_its_full_queue():
    recording = read_nsys(shared("a100_gpt2.7b_forward_eager"))

    assert kinds_and_names(recording) == {
        "runtime": 18_322, "kernel": 18_320, "sync": 2, "blocked": 7,
    }  # fmt: skip
    assert Counter(names_of(recording, "runtime"))["cudaLaunchKernel"] == 18_320
    assert names_of(recording, "sync") == ["Context Sync", "Context Sync"]
    assert recording.metadata["source"].startswith("nsys 3.16.1 ")
    assert recording.metadata["devices"][0]["name"] == "NVIDIA A100-SXM4-80GB"
    assert recording.metadata["notes"] == []
    # 1,022 are in flight when calls return; one that is blocked makes it 1,023
    assert in_flight(recording) == (1_023, 1_022)


def test_the_shared_rtx_trace_has_its_counts_and_its_full_queue():
    recording = read_nsys(shared("rtx3070ti_transformer_training_nvtx"))

    assert kinds_and_names(recording) == {
        "runtime": 20_436, "kernel": 17_032, "memset": 1_510, "memcpy": 272, "sync": 169, "annotation": 31,
        "blocked": 514,
    }  # fmt: skip
    assert Counter(names_of(recording, "sync")) == {"Context Sync": 15, "Event Query": 42, "Stream Sync": 112}
    assert Counter(names_of(recording, "memcpy")) == {
        "Memcpy DtoD (Device -> Device)": 130,
        "Memcpy HtoD (Pageable -> Device)": 112,
        "Memcpy HtoD (Pinned -> Device)": 30,
    }
    assert Counter(names_of(recording, "annotation"))["Forward"] == 15
    assert in_flight(recording) == (1_022, 1_021)


def test_the_shared_graph_trace_has_ten_graphs_not_itemised():
    recording = read_nsys(shared("a100_gpt2.7b_forward_compiled_cuda_graph"))

    names = Counter(names_of(recording, "kernel"))
    assert names.pop("CUDA graph") == 10
    assert names.total() == 30
    assert recording.metadata["notes"][0].startswith("10 CUDA graph launches traced as a whole")


def test_the_shared_pipeline_trace_is_two_ranks_whose_ids_collide():
    recording = read_nsys(shared("h100_pipeline_2gpu"))

    assert kinds_and_names(recording) == {
        "operator": 18_490, "runtime": 7_466, "kernel": 4_010, "memcpy": 1_020, "annotation": 628,
        "sync": 366, "memset": 269,
    }  # fmt: skip
    assert Counter(names_of(recording, "sync")) == {
        "Stream Wait Event": 200, "Event Query": 133, "Stream Sync": 33,
    }  # fmt: skip
    calls = set(recording["correlation"][recording.is_kind("runtime")].tolist())
    device = recording.is_kind("kernel", "memcpy", "memset")
    assert sum(code not in calls for code in recording["correlation"][device].tolist()) == 31
    assert (
        "200 of 200 waits for an event have no record of the event in the file."
        in recording.metadata["notes"]
    )

    first, second = split_ranks(recording)
    assert [int(part.is_kind("kernel").sum()) for part in (first, second)] == [1_993, 2_017]
    assert [set(part["device"].tolist()) for part in (first, second)] == [{-1, 0}, {-1, 1}]
