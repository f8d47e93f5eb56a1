"""Several ranks in one trace: whose collectives are one, and what they say about the clocks."""

import numpy as np
import pytest
from collective_traces import collective, trace_of
from kineto_text import document, kernel, training, write
from shared import shared_trace

import daydream
from daydream.collect.derive.collectives import match_collectives
from daydream.collect.importers import import_trace
from daydream.collect.importers.ranks import align_ranks
from daydream.errors import TraceError

ENDS = [10, 1_030, 3_050]  # no two pauses alike


def met(trace):
    """Return each meeting as (rank, start in us) of its members."""
    start, rank = trace["start_ns"] // 1000, trace["rank"]
    return [[(int(rank[row]), int(start[row])) for row in rows] for rows in match_collectives(trace).rows]


def run(rank, ends, *, late=0, **columns):
    """Return a rank's all-reduces that end at these times on a clock that is `late` behind."""
    return [collective(end - 5 - rank - late, end - late, rank=rank, **columns) for end in ends]


# -- who met whom ----------------------------------------------------------------------------------


def test_the_same_sequence_on_two_ranks_is_matched_in_order():
    assert met(trace_of(*run(0, [10, 30]), *run(1, [10, 31]))) == [[(0, 5), (1, 4)], [(0, 25), (1, 25)]]


def test_the_root_of_a_broadcast_that_ends_early_says_nothing_about_the_clocks():
    #  rank 0, the root  |reduce: 10 to 20|two broadcasts: 21 to 31, 32 to 42|
    #  rank 1            |reduce: 12 to 22|             ...   |two broadcasts: 401 to 411, 412 to 422|
    rows = [collective(10, 20, rank=0), collective(12, 22, rank=1)]
    for rank, at in ((0, 21), (1, 401)):
        rows += [collective(at + n, at + n + 10, rank=rank, operation="broadcast") for n in (0, 11)]
    found = match_collectives(trace_of(*rows))
    assert found.offset_ns == {0: 0, 1: -2_000}
    assert found.spread_ns.tolist() == [2_000, 0, 0]


def test_a_row_lost_in_the_middle_costs_no_other_match():
    ends = [1_000.0 * place for place in range(1, 9)]
    found = match_collectives(trace_of(*run(0, ends), *run(1, ends[:4] + ends[5:])))
    assert len(found) == 7
    assert found.residual_ns == 0
    assert found.alone == {0: 1}


def test_groups_are_matched_by_themselves_whatever_their_order_in_time():
    rows = [
        collective(0, 10, group="data", rank=0), collective(20, 30, group="tensor", rank=0),
        collective(0, 30, group="tensor", rank=1), collective(40, 50, group="data", rank=2),
        collective(1, 10, group="data", rank=1),
    ]  # fmt: skip
    assert met(trace_of(*rows[:3], rows[4])) == [[(0, 0), (1, 1)], [(0, 20), (1, 0)]]


def test_operations_and_sizes_that_differ_do_not_meet():
    other = trace_of(*run(0, [10, 20]), *run(1, [10, 20], operation="broadcast"))
    assert (len(match_collectives(other)), match_collectives(other).alone) == (0, {0: 2, 1: 2})
    assert len(match_collectives(trace_of(*run(0, [10], nbytes=8), *run(1, [10], nbytes=16)))) == 0


def test_messages_between_two_of_four_are_not_matched():
    rows = [row for rank in range(4) for row in run(rank, [10], operation="send_recv")]
    assert len(match_collectives(trace_of(*rows))) == 1
    # Ranks 2 and 3 exchange theirs much later: no collective of all.
    rows = [
        row
        for rank in range(4)
        for row in run(rank, [10, 20] if rank < 2 else [9_000], operation="send_recv")
    ]
    assert len(match_collectives(trace_of(*rows))) == 0


# -- clocks ----------------------------------------------------------------------------------------


def test_a_clock_that_lies_behind_is_moved_and_it_is_said():
    trace = trace_of(*run(0, ENDS), *run(1, ENDS, late=1_000_000), origin_ns=5_000_000_000)
    trace.metadata["steps"] = [{"name": "a", "rank": 1, "start_ns": -1_000_000_000, "end_ns": None}]
    align_ranks(trace)

    ends = trace["start_ns"] + trace["duration_ns"]
    assert ends.tolist() == [1000 * end for end in ENDS] * 2
    assert trace.metadata["steps"][0]["start_ns"] == 0
    assert trace.metadata["alignment"] == {
        "collectives": 3, "residual_ns": 0, "moved_ns": {"0": 0, "1": 1_000_000_000}, "alone": {},
    }  # fmt: skip
    assert any("clocks moved: rank 1 by +1,000,000.0 us" in note for note in trace.metadata["notes"])


def test_a_difference_within_the_noise_moves_no_clock():
    trace = trace_of(*run(0, [10, 30, 50]), *run(1, [12, 28, 54]))
    align_ranks(trace)
    assert trace.metadata["alignment"]["moved_ns"] == {"0": 0, "1": 0}
    assert trace.metadata["alignment"]["residual_ns"] == 4_000
    assert any(
        "ends within 4.0 us" in note and "no clock was moved" in note for note in trace.metadata["notes"]
    )


def test_a_rank_is_aligned_through_another_that_it_met():
    rows = [
        *run(0, ENDS, group="a"), *run(1, ENDS, group="a", late=100),
        *run(1, ENDS, group="b", late=100), *run(2, ENDS, group="b", late=300),
    ]  # fmt: skip
    trace = trace_of(*rows)
    align_ranks(trace)
    assert trace.metadata["alignment"]["moved_ns"] == {"0": 0, "1": 100_000, "2": 300_000}


def test_missing_ranks_strangers_and_what_met_none_are_said():
    rows = [*run(0, [10, 30]), *run(1, [30]), *run(2, [40], operation="broadcast", group="other")]
    trace = trace_of(*rows, world_size=8)
    align_ranks(trace)
    notes = " ".join(trace.metadata["notes"])
    assert "1 collective of 3 of 8 ranks matched" in notes
    assert "match none of another rank: 1 of rank 0, 1 of rank 2" in notes
    assert "Ranks without a match, whose clocks are as recorded: 2" in notes


def test_drifting_clocks_are_said():
    drift = [1_000.0 * place for place in range(10)]
    trace = trace_of(*run(0, drift), *run(1, [1.1 * at for at in drift]))
    align_ranks(trace)
    assert any("drift apart" in note for note in trace.metadata["notes"])


# -- files -----------------------------------------------------------------------------------------


def rank_file(folder, name, offset_us, **info):
    """Write a file with one all-reduce whose clock is off."""
    nccl = kernel("ncclDevKernel_AllReduce", 300 + offset_us, 40, 77)
    nccl["args"] |= {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"}
    events = [*training(2), nccl]
    return write(folder / name, document(events, **({"distributedInfo": info} if info else {})))


@pytest.mark.parametrize("ranks", [[1], [1, 1], [-1, 2]])
def test_ranks_that_make_no_sense_are_refused(tmp_path, ranks):
    files = [rank_file(tmp_path, name, 0) for name in ("left.json", "right.json")]
    with pytest.raises(TraceError, match="rank"):
        import_trace(files, ranks=ranks)


NOW = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"rank": 0, "world_size": 2}, {"rank": 0, "world_size": 2}, "both say that they are rank 0 of 2"),
        ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 8}, "one of 2 ranks, one of 8"),
        (
            {"rank": 0, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]},
            {"rank": 4, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [4, 5]}]},
            "process groups hold other ranks",
        ),
    ],
)
def test_files_of_two_jobs_or_of_one_rank_are_refused(tmp_path, first, second, why):
    files = [rank_file(tmp_path, "a.json", 0, **first), rank_file(tmp_path, "b.json", 0, **second)]
    with pytest.raises(TraceError, match=why) as refused:
        import_trace(files)
    assert "a.json and b.json" in str(refused.value)
    assert "--ranks 0,1" in str(refused.value)  # how to choose
    assert import_trace(files, ranks=[0, 1]).metadata["ranks"] == [{"rank": 0}, {"rank": 1}]


def timed_file(folder, name, base_ns, shift_us):
    events = training(2)
    for event in events:
        event["ts"] += shift_us
    return write(folder / name, document(events, baseTimeNanoseconds=base_ns))


def test_recordings_that_do_not_meet_in_time_are_refused(tmp_path):
    files = [timed_file(tmp_path, "a.json", NOW, 0), timed_file(tmp_path, "b.json", NOW + 3600 * 10**9, 7)]
    with pytest.raises(TraceError, match="recorded 60 minutes after the other had ended"):
        import_trace(files)


def test_clocks_that_count_from_the_start_of_a_machine_tell_no_jobs_apart(tmp_path):
    files = [timed_file(tmp_path, "a.json", 10**15, 0), timed_file(tmp_path, "b.json", 3 * 10**15, 7)]
    assert import_trace(files).metadata["ranks"] == [{"rank": 0}, {"rank": 1}]


def test_the_same_recording_twice_is_refused(tmp_path):
    files = [timed_file(tmp_path, name, NOW, 0) for name in ("a.json", "copy.json")]
    with pytest.raises(TraceError, match="are the same recording"):
        import_trace(files)


def test_four_of_eight_real_ranks_meet_in_all_their_collectives():
    trace = daydream.load(shared_trace("kineto/v100_dlrm_4_of_8_ranks"))
    found = match_collectives(trace)
    assert [len(rows) for rows in found.rows] == [4] * 8
    assert found.alone == {}
    assert trace.metadata["alignment"]["residual_ns"] <= 10_000
    assert any("8 collectives of 4 of 8 ranks" in note for note in trace.metadata["notes"])


def test_the_command_line_takes_the_ranks(tmp_path, monkeypatch, capsys):
    from daydream.cli import main

    monkeypatch.chdir(tmp_path)
    for name in ("left.json", "right.json"):
        rank_file(tmp_path, name, 0)
    command = ["import", "left.json", "right.json", "-o", "both.parquet", "--ranks"]
    codes = []
    for ranks in ("4,1", "4", "one"):
        with pytest.raises(SystemExit) as done:
            main([*command, ranks, "--force"])
        codes.append(done.value.code)
    assert codes == [0, 1, 2]
    assert np.unique(daydream.load("both.parquet")["rank"]).tolist() == [1, 4]
