"""Several ranks in one trace: whose collectives are one, and what they say about the clocks."""

import numpy as np
import pytest
from graph.small_traces import collective, kineto, trace, training, write
from shared import shared_trace

import daydream
from daydream.cli import main
from daydream.collect.derive.collectives import match_collectives
from daydream.collect.importers import import_trace
from daydream.collect.importers.ranks import align_ranks
from daydream.errors import TraceError

ENDS = [10, 1_030, 3_050]  # no two pauses alike


def run(rank, ends, *, late=0, **columns):
    """Return a rank's all-reduces that end at these times on a clock that is `late` behind."""
    return [collective(end - 5 - rank - late, end - late, rank=rank, **columns) for end in ends]


def met(*runs):
    """Return each meeting as (rank, start in us) of its members."""
    found = trace(*(row for rows in runs for row in rows))
    start, rank = found["start_ns"] // 1000, found["rank"]
    return [[(int(rank[row]), int(start[row])) for row in rows] for rows in match_collectives(found).rows]


def aligned(*runs, listed=(), **metadata):
    """Return a trace of these rows after its clocks were aligned, what is known of them, and the notes."""
    found = trace(*(row for rows in runs for row in rows), **metadata)
    found.metadata["steps"] = list(listed)
    align_ranks(found)
    return found, found.metadata["alignment"], " ".join(found.metadata["notes"])


# -- who met whom ----------------------------------------------------------------------------------

DATA, TENSOR = ({"group": name, "rank": rank} for name, rank in (("data", 1), ("tensor", 1)))
FOUR = [run(rank, [10, 20] if rank < 2 else [9_000], operation="send_recv") for rank in range(4)]


@pytest.mark.parametrize(
    ("runs", "meetings"),
    [
        ([run(0, [10, 30]), run(1, [10, 31])], [[(0, 5), (1, 4)], [(0, 25), (1, 25)]]),
        # groups by themselves, whatever their order in time
        (
            [
                [collective(0, 10, group="data", rank=0), collective(20, 30, group="tensor", rank=0)],
                [collective(0, 30, **TENSOR), collective(1, 10, **DATA)],
            ],
            [[(0, 0), (1, 1)], [(0, 20), (1, 0)]],
        ),
        ([run(0, [10, 20]), run(1, [10, 20], operation="broadcast")], []),
        ([run(0, [10], nbytes=8), run(1, [10], nbytes=16)], []),
        ([run(rank, [10], operation="send_recv") for rank in range(4)], [[(0, 5), (1, 4), (2, 3), (3, 2)]]),
        (FOUR, []),  # ranks 2 and 3 exchange theirs much later: no collective of all
    ],
)
def test_who_meets_whom(runs, meetings):
    assert met(*runs) == meetings


def test_the_root_of_a_broadcast_that_ends_early_says_nothing_about_the_clocks():
    #  rank 0, the root  |reduce: 10 to 20|two broadcasts: 21 to 31, 32 to 42|
    #  rank 1            |reduce: 12 to 22|             ...   |two broadcasts: 401 to 411, 412 to 422|
    rows = [collective(10, 20, rank=0), collective(12, 22, rank=1)]
    for rank, at in ((0, 21), (1, 401)):
        rows += [collective(at + n, at + n + 10, rank=rank, operation="broadcast") for n in (0, 11)]
    found = match_collectives(trace(*rows))
    assert found.offset_ns == {0: 0, 1: -2_000}
    assert found.spread_ns.tolist() == [2_000, 0, 0]


def test_a_row_lost_in_the_middle_costs_no_other_match():
    ends = [1_000.0 * place for place in range(1, 9)]
    found = match_collectives(trace(*run(0, ends), *run(1, ends[:4] + ends[5:])))
    assert (len(found), found.residual_ns, found.alone) == (7, 0, {0: 1})


# -- clocks ----------------------------------------------------------------------------------------


def test_a_clock_that_lies_behind_is_moved_and_it_is_said():
    steps = [{"name": "a", "rank": 1, "start_ns": -1_000_000_000, "end_ns": None}]
    both = run(0, ENDS), run(1, ENDS, late=1_000_000)
    trace, known, notes = aligned(*both, origin_ns=5_000_000_000, listed=steps)
    assert trace.metadata["steps"][0]["start_ns"] == 0
    assert (trace["start_ns"] + trace["duration_ns"]).tolist() == [1000 * end for end in ENDS] * 2
    assert known == {
        "collectives": 3, "residual_ns": 0, "moved_ns": {"0": 0, "1": 1_000_000_000}, "alone": {},
    }  # fmt: skip
    assert "clocks moved: rank 1 by +1,000,000.0 us" in notes


@pytest.mark.parametrize(
    ("runs", "moved_ns", "said"),
    [
        ([run(0, [10, 30, 50]), run(1, [12, 28, 54])], {"0": 0, "1": 0}, "ends within 4.0 us"),
        # a rank that is aligned through another that it met
        (
            [run(0, ENDS, group="a"), run(1, ENDS, group="a", late=100), run(1, ENDS, group="b", late=100),
             run(2, ENDS, group="b", late=300)],
            {"0": 0, "1": 100_000, "2": 300_000}, "",
        ),
    ],
)  # fmt: skip
def test_clocks_are_moved_by_what_ranks_did_together(runs, moved_ns, said):
    _, known, notes = aligned(*runs)
    assert known["moved_ns"] == moved_ns
    assert said in notes


def test_missing_ranks_strangers_and_clocks_that_drift_are_said():
    other = run(2, [40], operation="broadcast", group="other")
    _, _, notes = aligned(run(0, [10, 30]), run(1, [30]), other, world_size=8)
    assert "1 collective of 3 of 8 ranks matched" in notes
    assert "match none of another rank: 1 of rank 0, 1 of rank 2" in notes
    assert "Ranks without a match, whose clocks are as recorded: 2" in notes
    drift = [1_000.0 * place for place in range(10)]
    assert "drift apart" in aligned(run(0, drift), run(1, [1.1 * at for at in drift]))[2]


# -- files -----------------------------------------------------------------------------------------

NOW = 1_700_000_000_000_000_000


def files(folder, *headers, shift_us=(0, 7)):
    """Write a file of each header with a rank's training, later by so much in the second."""
    written = []
    for number, header in enumerate(headers):
        given = [dict(each) for each in training(2)]
        for each in given:
            key, unit = ("start_ns", 1000) if "start_ns" in each else ("ts", 1)
            each[key] += shift_us[number] * unit
        written.append(write(folder / f"{'ab'[number]}.json", kineto(given, **header)))
    return written


def group(*ranks):
    return [{"pg_name": "0", "pg_desc": "default_pg", "ranks": ranks}]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"rank": 0, "world_size": 2}, {"rank": 0, "world_size": 2}, "both say that they are rank 0 of 2"),
        ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 8}, "one of 2 ranks, one of 8"),
        (
            {"rank": 0, "pg_config": group(0, 1)},
            {"rank": 4, "pg_config": group(4, 5)},
            "process groups hold other ranks",
        ),
    ],
)
def test_files_of_two_jobs_or_of_one_rank_are_refused(tmp_path, first, second, why):
    both = files(tmp_path, {"distributedInfo": first}, {"distributedInfo": second})
    with pytest.raises(TraceError, match=why) as refused:
        import_trace(both)
    assert "a.json and b.json" in str(refused.value)
    assert "--ranks 0,1" in str(refused.value)  # how to choose
    assert import_trace(both, ranks=[0, 1]).metadata["ranks"] == [{"rank": 0}, {"rank": 1}]
    for ranks in ([1], [1, 1], [-1, 2]):
        with pytest.raises(TraceError, match="rank"):
            import_trace(both, ranks=ranks)


def test_recordings_that_do_not_meet_in_time_or_are_the_same_are_refused(tmp_path):
    def timed(*bases, **how):
        return files(tmp_path, *({"baseTimeNanoseconds": base} for base in bases), **how)

    with pytest.raises(TraceError, match="recorded 60 minutes after the other had ended"):
        import_trace(timed(NOW, NOW + 3600 * 10**9))
    with pytest.raises(TraceError, match="are the same recording"):
        import_trace(timed(NOW, NOW, shift_us=(0, 0)))
    # Clocks that count from the start of a machine tell no jobs apart.
    assert import_trace(timed(10**15, 3 * 10**15)).metadata["ranks"] == [{"rank": 0}, {"rank": 1}]


def test_four_of_eight_real_ranks_meet_in_all_their_collectives():
    trace = daydream.load(shared_trace("kineto/v100_dlrm_4_of_8_ranks"))
    found = match_collectives(trace)
    assert ([len(rows) for rows in found.rows], found.alone) == ([4] * 8, {})
    assert trace.metadata["alignment"]["residual_ns"] <= 10_000
    assert any("8 collectives of 4 of 8 ranks" in note for note in trace.metadata["notes"])


def test_the_command_line_takes_the_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, {}, {})
    codes = []
    for ranks in ("4,1", "4", "one"):
        with pytest.raises(SystemExit) as done:
            main(["import", "a.json", "b.json", "-o", "both.parquet", "--ranks", ranks, "--force"])
        codes.append(done.value.code)
    assert codes == [0, 1, 2]
    assert np.unique(daydream.load("both.parquet")["rank"]).tolist() == [1, 4]
