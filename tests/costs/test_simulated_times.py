"""Times of collectives from a network simulator: which they are, whose they are, what is refused."""

import pytest
from daydream.optimizations._hardware import collective_times
from graph.small_graphs import put

from daydream import DaydreamError, Graph, GraphError, simulate
from daydream.costs.network.simulated_times import node_of, read_simulated_times
from daydream.graph.tables import Lane

HEADER = "rank,node,duration_ns\n"


def log(*events):
    return "".join(
        f"[2026-01-01 00:00:00.000] [workload] [debug] {what},sys->id={rank}, tick={tick}, node->id={node}, "
        f"node->name={name}, node->type=7\n"
        for what, rank, tick, node, name in events
    )


def one_rank():
    #  stream 7  |k 10|      |end 5|        link  |all-reduce 40|all-gather 20|
    graph = Graph()
    k = put(graph, "k", "stream 7", 10)
    first = put(graph, "all-reduce", "link", 40, after=[k])
    second = put(graph, "all-gather", "link", 20)
    put(graph, "end", "stream 7", 5, after=[second])
    return graph, first.ids[0], second.ids[0]


def two_ranks():
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals, transfers = [], []
    for rank, time in ((0, 10), (1, 30)):
        lane = f"rank {rank} stream 7"
        graph.add_lane(Lane(lane, rank=rank, on_device=True))
        graph.insert("k", kind="kernel", lane=lane, duration_ns=time)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0))
    hub = put(graph, "last arrival", "joined", 0, after=arrivals)
    for rank in (0, 1):
        lane = f"rank {rank} stream 7"
        transfers.append(
            graph.insert("all-reduce", kind="collective", lane=lane, duration_ns=40, after=[hub])
        )
    return graph, transfers[0].ids[0], transfers[1].ids[0]


def give(graph, folder, text):
    (folder / "times").write_text(text)
    collective_times(graph, collective_times=str(folder / "times"))


def test_a_table_gives_durations(tmp_path):
    graph, first, _ = one_rank()
    give(graph, tmp_path, f"{HEADER}0,{node_of(first)},100\n")
    assert simulate(graph).makespan_ns == 10 + 100 + 20 + 5
    assert any("1 of 2 collectives take" in note for note in graph.facts.notes)


def test_a_log_counts_from_the_last_rank_that_issues_to_the_last_that_is_done(tmp_path):
    #  one file used for two ranks: issued at 1,000 and 1,500, done at 1,700
    graph, first, _ = one_rank()
    node = node_of(first)
    text = log(
        ("issue", 0, 1_000, node, "all-reduce"), ("issue", 1, 1_500, node, "all-reduce"),
        ("callback", 0, 1_690, node, "all-reduce"), ("callback", 1, 1_700, node, "all-reduce"),
    )  # fmt: skip
    give(graph, tmp_path, "other lines\n" + text)
    assert simulate(graph).makespan_ns == 10 + 200 + 20 + 5


def test_waiting_for_a_peer_is_not_counted_as_transfer(tmp_path):
    #  rank 0 issues at 10 and waits for rank 1, which does at 30; both are done at 130
    graph, *tasks = two_ranks()
    nodes = [node_of(task) for task in tasks]
    text = log(
        ("issue", 0, 10, nodes[0], "all-reduce"), ("issue", 1, 30, nodes[1], "all-reduce"),
        ("callback", 0, 130, nodes[0], "all-reduce"), ("callback", 1, 130, nodes[1], "all-reduce"),
    )  # fmt: skip
    give(graph, tmp_path, text)
    assert [int(graph.columns["duration_ns"][task]) for task in tasks] == [100, 100]
    assert simulate(graph).makespan_ns == 30 + 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no times of collectives"),
        ("rank,node,duration_ns\n", "no times of collectives"),
        ("hello\nworld\n", "no times of collectives"),
        (HEADER + "0,3\n", "line 2: three whole numbers"),
        (HEADER + '0,3,"1,200"\n', "line 2: three whole numbers"),
        (HEADER + "0,3,-5\n", "line 2: three whole numbers"),
        (HEADER + "0,3,1e9\n", "line 2: three whole numbers"),
        (HEADER + "0,3,nan\n", "line 2: three whole numbers"),
        (HEADER + "0,3,5\n0,3,6\n", "line 3: node 3 of rank 0 is there twice"),
        (HEADER + f"0,3,{10**17}\n", "too long to be simulated"),
        (HEADER + f"0,{'9' * 5000},4\n", "line 2: three whole numbers"),
        (log(("issue", 0, 5, 3, "a")), "1 collectives do not end"),
        (log(("callback", 0, 5, 3, "a")), "was not issued"),
        (log(("issue", 0, 5, 3, "a"), ("issue", 0, 6, 3, "a")), "is logged twice"),
    ],
)
def test_what_is_no_table_and_no_log_is_told_in_a_line(text, said, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DaydreamError, match=said) as error:
        read_simulated_times(tmp_path / "t.csv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "given"), [("missing", None), ("bytes", b"\xff\xfe\x00\x80")])
def test_what_cannot_be_read_is_told_in_a_line(name, given, tmp_path):
    path = tmp_path / name
    if given is not None:
        path.write_bytes(given)
    with pytest.raises(DaydreamError, match=r"no such file|cannot be read"):
        read_simulated_times(path)


def test_a_file_of_another_graph_is_refused(tmp_path):
    graph, first, _ = one_rank()
    with pytest.raises(GraphError, match="is no collective of this graph"):
        give(graph, tmp_path, f"{HEADER}0,{node_of(first) + 1},100\n")
    node = node_of(first)
    with pytest.raises(GraphError, match="no collective of this graph"):
        give(graph, tmp_path, log(("issue", 0, 1, node, "other"), ("callback", 0, 2, node, "other")))
