"""Collectives of a fake world on a cluster of round figures. Times in microseconds."""

import json
from functools import partial

import pytest
from small_traces import launched, note, op, trace

import daydream
from daydream import build
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.lower import problems
from daydream.graph.plan import Cause
from daydream.report.views.step import headline
from daydream.simulate.steady_state import settle
from daydream.world.stages import joined_stages, stages_of

MB = 1_000_000
#  thread  |forward 100|all-reduce: call 7|backward 50|all-gather: call 5|wait 3|wait 3 for the first|step 40|
OURS = 7 + 5 + 3 + 3  # what our own calls take, which a job does not have
WORK = 100 + 50 + 40
# 2 MB in a ring of two at 1 GB/s; of the Simple protocol half a chunk of 1 MB, and its fixed cost.
REDUCED = 2000 + 500 + 8.4


@pytest.fixture
def cluster(tmp_path):
    """Return a file of machines of 2 GPUs: 1 GB/s in a node and 0.5 GB/s out of it, no latency."""
    file = tmp_path / "lab.json"
    links = {
        name: {"bandwidth_gb_per_s": speed, "latency_us": 0} for name, speed in (("intra", 1), ("inter", 0.5))
    }
    file.write_text(json.dumps({"gpus_per_node": 2, **links}))
    return str(file)


def job(cluster=None, *, steps=4, operation="all_reduce", nbytes=2 * MB, group="1", peer=-1):
    """Return a trace of rank 0 of 4: in each step a collective of `group` beside the backward pass."""
    rows = []
    at = 0
    for number in range(0, 2 * steps, 2):
        first = {"collective": operation, "bytes": nbytes, "group": group, "peer": peer}
        second = {"collective": "all_gather", "bytes": 4, "group": "2", "peer": -1}
        for what, took, columns in (
            ("forward", 100, {}),
            (f"fake:{operation}", 7, {"correlation": number, "asynchronous": 1, **first}),
            ("backward", 50, {}),
            ("fake:all_gather", 5, {"correlation": number + 1, "asynchronous": 0, **second}),
            ("fake:wait", 3, {"correlation": number + 1}),
            ("fake:wait", 3, {"correlation": number}),
            ("step", 40, {}),
        ):
            make = note if what.startswith("fake") else op
            rows.append(make(what, at, at + took, **columns))
            at += took
    groups = {"1": [0, 1], "2": [0], "0": [0, 1, 2, 3]}
    names = {"1": "mesh_tp", "2": "mesh_dp", "0": "default_pg"}
    groups = [{"name": each, "ranks": ranks, "description": names[each]} for each, ranks in groups.items()]
    return world(rows, at // steps, steps, groups, world_size=4, rank=0, cluster=cluster)


def world(rows, length, steps, groups, **of):
    """Return the trace of a rank whose steps are of equal length, us."""
    return trace(
        rows, steps=tuple(range(0, length * steps + 1, length)), vendor="cpu", world_size=of["world_size"],
        fake_world=of, groups=groups, step_source="",
    )  # fmt: skip


def step_us(found):
    return daydream.replay(found).basis_ns / 1000


def test_each_collective_is_a_task_that_its_call_launches_and_its_wait_waits_for():
    graph = build(job())

    tasks = graph.select(kind="collective")
    assert not problems(graph)
    assert set(tasks.lane.tolist()) == {"mesh_tp", "mesh_dp"}
    assert tasks.name[:2].tolist() == ["all_reduce mesh_tp", "all_gather mesh_dp"]
    assert tasks.bytes[:2].tolist() == [2 * MB, 4]
    assert graph.tasks(tasks.launch).name[:2].tolist() == ["fake:all_reduce", "fake:all_gather"]
    assert settle(graph).step_ns == 1000 * (WORK + OURS)  # as recorded: nothing is transferred


def test_a_step_takes_its_work_and_what_it_waits_for(cluster):
    # Of the transfer 50 us are beside the backward pass; a group of one moves nothing.
    assert step_us(job(cluster)) == pytest.approx(WORK + REDUCED - 50, abs=0.01)


def test_what_the_work_hides_costs_nothing(cluster):
    assert step_us(job(cluster, nbytes=30_000)) == pytest.approx(
        WORK, abs=0.01
    )  # 30 + 7.5 + 8.4 us beside 50


def test_a_group_across_nodes_goes_over_the_slower_link(cluster):
    assert step_us(job(cluster, group="1")) < step_us(job(cluster, group="0"))


@pytest.mark.parametrize(("peer", "speed"), [(1, 1.0), (2, 0.25)])  # a GPU has half of its node's way out
def test_a_message_goes_over_the_link_to_its_peer(cluster, peer, speed):
    sent = job(cluster, operation="send", peer=peer)
    assert step_us(sent) == pytest.approx(WORK - 50 + 2000 / speed + 8.4, abs=0.01)


def test_a_job_without_machines_or_groups_that_hold_it_is_refused(cluster):
    for found, said in (
        (job(), r"fake world of 4 ranks.*--cluster"),
        (job(f"{cluster}:1"), "4 workers do not fit"),
        (job(cluster, group="3"), "which ranks are in group 3"),
    ):
        with pytest.raises(GraphError, match=said):
            daydream.replay(found)


def test_half_the_network_takes_twice_the_time_and_no_peer_is_waited_for(cluster):
    found = daydream.whatif(daydream.replay(job(cluster)), "network", bandwidth_factor=0.5)

    assert found.replayed_ns == pytest.approx(1000 * (WORK + REDUCED - 50), abs=10)
    assert found.predicted_ns == pytest.approx(1000 * (WORK + 2 * REDUCED - 50), abs=10)
    assert "peers" not in " ".join(found.notes)


def test_overlap_hides_what_the_program_waits_for(cluster):
    found = daydream.whatif(daydream.replay(job(cluster, nbytes=100_000)), "overlap")

    assert found.predicted_ns == pytest.approx(1000 * WORK, abs=10)
    assert "launch-bound CPU" not in found.breakdowns()[1]["by_cause"]  # there is no device to launch to
    assert str(headline(found)).count("rank 0 of 4 in a fake world") == 1


def experts(cluster, imbalance, *, groups=("0", "0")):
    """Return a trace of rank 0 of 2: in each step tokens go to experts and come back."""
    rows = []
    at = 0
    for number in range(8):
        sent = {"collective": "all_to_all", "bytes": MB, "group": groups[number % 2], "peer": -1}
        for make, what, took, columns in (
            (op, ["router", "experts"][number % 2], [30, 100][number % 2], {}),
            (note, "fake:all_to_all", 7, {"correlation": number, **sent}),
            (note, "fake:wait", 3, {"correlation": number}),
        ):
            rows.append(make(what, at, at + took, **columns))
            at += took
    named = [{"name": each, "ranks": [0, 1], "description": f"mesh_{each}"} for each in "01"]
    return world(rows, at // 4, 4, named, world_size=2, rank=0, cluster=cluster, imbalance=imbalance)


def test_experts_of_a_busy_rank_and_their_tokens_take_longer(cluster):
    # Half of what is sent goes to the other member: 500 us, half a chunk of as much, and the fixed cost.
    assert step_us(experts(cluster, 1.0)) == pytest.approx(30 + 100 + 2 * (500 + 250 + 8.4))
    assert step_us(experts(cluster, 1.5)) == pytest.approx(30 + 150 + 2 * (750 + 375 + 8.4))


def test_all_to_alls_of_two_groups_are_not_known_to_be_experts(cluster):
    with pytest.raises(GraphError, match="--imbalance is for experts between two all-to-alls of one group"):
        daydream.replay(experts(cluster, 1.5, groups=("0", "1")))


@pytest.mark.parametrize("name", ["ddp", "fsdp", "tensor-parallel", "pipeline", "scaling"])
def test_nothing_is_shared_out_a_second_time(cluster, name):
    replay = daydream.replay(job(cluster))
    with pytest.raises(NotApplicableError, match=r"rank 0 of 4 in a fake world.*collect --world N"):
        daydream.scaling(replay) if name == "scaling" else daydream.whatif(replay, name)


def test_on_a_gpu_a_collective_is_tied_to_the_kernels_around_it_of_its_rank():
    #  rank 0  |launch a|all-reduce|wait|        rank 1  |all-reduce|wait|launch b|
    reduce, wait = (
        partial(note, f"fake:{name}", correlation=0, **columns)
        for name, columns in (("all_reduce", {"collective": "all_reduce", "group": "1"}), ("wait", {}))
    )
    first = [launched("a", 0, 10, 20, rank=0), reduce(6, 8, rank=0), wait(8, 9, rank=0)]
    second = [reduce(0, 2, rank=1), wait(2, 3, rank=1), launched("b", 4, 10, 20, rank=1)]
    graph = build(world([first, second], 20, 1, [], world_size=2, rank=0, cluster=None))

    links = graph.links["cause"] == Cause.COMMUNICATION
    ends = [graph.links[end][links] for end in ("src", "dst")]
    names = [graph.column("name", each).tolist() for each in ends]
    assert names == [["a", "all_reduce group 1"], ["all_reduce group 1", "b"]]
    assert [graph.rank[each].tolist() for each in ends] == [[0, 1], [0, 1]]


# -- stages of a pipeline, each recorded alone ------------------------------------------------------


def stage(cluster, rank, work, *, messages=4):
    """Return a trace of one of two stages: in each step rank 0 works and sends, rank 1 receives and works."""
    what = "recv" if rank else "send"
    columns = {"collective": what, "bytes": 30_000, "group": "0", "peer": 1 - rank}
    rows = []
    at = 0
    for number in range(4):
        moved = [(note, f"fake:{what}", 7, {"correlation": number, **columns})] * (number < messages)
        waits = [(note, "fake:wait", 3, {"correlation": number})] if rank else []
        does = [(op, "work", work, {})]
        for make, name, took, given in [*moved, *waits, *does] if rank else [*does, *moved]:
            rows.append(make(name, at, at + took, **given))
            at += took
    groups = [{"name": "0", "ranks": [0, 1], "description": "pp"}]
    return world(rows, at // 4, 4, groups, world_size=2, rank=rank, cluster=cluster)


MOVED = 30 + 8.4  # us of a message of 30 kB at 1 GB/s, and the fixed cost


def test_a_stage_goes_on_when_what_the_one_before_it_sends_is_there(cluster):
    first, second = stage(cluster, 0, 100), stage(cluster, 1, 60)
    assert step_us(second) == pytest.approx(MOVED + 60)
    assert stages_of(first) == [1]

    replay = daydream.replay(joined_stages([first, second]))
    assert replay.error == 0  # the recorded steps are those of each rank alone
    assert replay.basis_ns == 100_000  # rank 1 waits for rank 0

    def job_us(factor):
        return daydream.whatif(replay, "scale", name="work", factor=factor).predicted_ns / 1000

    assert job_us(2) == 200
    assert job_us(0.5) == pytest.approx(MOVED + 30)  # rank 0 works 50 us beside


def test_stages_of_other_numbers_of_steps_are_refused(cluster):
    with pytest.raises(GraphError, match="rank 0 sends 3 messages to rank 1, which receives 4"):
        daydream.replay(joined_stages([stage(cluster, 0, 100, messages=3), stage(cluster, 1, 60)]))
