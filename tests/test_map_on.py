"""Engines: the same answers in the same order wherever they are found, and errors that say what is wrong."""

import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from machine.programs import PROGRAMS

import daydream
from daydream import TraceError
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.parallel import Engine, engine_of, map_on


def adding(amount):
    """Return what adds an amount, and says in which process."""
    print("this is no result")  # noqa: T201 - as an optimization of a user may
    made = []

    def add(item):
        made.append(item)
        return item + amount, os.getpid(), len(made)

    return add


def refusing(reason):
    def refuse(item):
        if item == 7:
            raise TraceError(reason)
        return item

    return refuse


def dying(_shared):
    def die(_item):
        os._exit(3)

    return die


def dying_once(mark):
    def answer(item):
        if item == 7 and not mark.exists():
            mark.touch()
            os._exit(3)
        return item

    return answer


def sleeping(seconds):
    def sleep(item):
        if item == 0:
            raise DaydreamError("the first one fails")
        time.sleep(seconds)

    return sleep


@pytest.fixture(scope="session")
def scheduler():
    """The address of a Dask cluster that runs already."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, memory_limit=0, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


def need_dask():
    pytest.importorskip("distributed", reason="needs the extra `dask`")


def test_processes_answer_in_the_order_of_the_items(capfd):
    shares = []
    found = map_on("processes:2", adding, 100, range(50), progress=shares.append)

    assert [answer for answer, _, _ in found] == [100 + item for item in range(50)]
    assert os.getpid() not in {process for _, process, _ in found}
    assert shares == sorted(shares)
    assert shares[-1] == 1
    # Each process makes its state once: it counts the items that it has seen.
    assert sum(seen == 1 for _, _, seen in found) == len({process for _, process, _ in found})
    assert capfd.readouterr().out == ""  # what a worker prints is no part of a result


@pytest.mark.slow
def test_dask_answers_in_the_order_of_the_items():
    need_dask()
    found = map_on("dask:2", adding, 100, range(50))

    assert [answer for answer, _, _ in found] == [100 + item for item in range(50)]
    assert len({process for _, process, _ in found} - {os.getpid()}) == 2


@pytest.mark.slow
def test_a_scheduler_that_runs_already_serves_one_question_after_the_other(scheduler):
    for amount in (100, 200):
        found = map_on(f"dask:{scheduler}", adding, amount, range(50))
        assert [answer for answer, _, _ in found] == [amount + item for item in range(50)]
        assert sum(seen == 1 for _, _, seen in found) == len({process for _, process, _ in found})
    with pytest.raises(TraceError, match=r"^no such thing$"):
        map_on(f"dask:{scheduler}", refusing, "no such thing", range(9))


@pytest.mark.slow
def test_nothing_is_lost_when_a_worker_of_an_executor_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor(pure=False) as executor,
    ):
        found = map_on(executor, dying_once, tmp_path / "died", range(50))

    assert found == list(range(50))
    assert (tmp_path / "died").exists()


def test_an_executor_that_is_given_is_left_running():
    with ThreadPoolExecutor(2) as executor:
        assert engine_of(executor).executor is executor
        assert not engine_of(executor).elsewhere
        for amount in (100, 200):
            found = map_on(executor, adding, amount, range(50))
            assert [answer for answer, _, _ in found] == [amount + item for item in range(50)]


@pytest.mark.parametrize("engine", ["local", "processes:2"])
def test_an_error_of_a_worker_is_raised_as_it_is(engine):
    with pytest.raises(TraceError, match=r"^no such thing$"):
        map_on(engine, refusing, "no such thing", range(9))


@pytest.mark.slow
def test_an_error_of_a_dask_worker_is_raised_as_it_is():
    need_dask()
    with pytest.raises(TraceError, match=r"^no such thing$"):
        map_on("dask:2", refusing, "no such thing", range(9))
    with pytest.raises(DaydreamError, match="a worker process ended"):
        map_on("dask:1", dying, None, range(2))


def test_an_error_ends_the_workers_that_still_work():
    import multiprocessing

    before = set(multiprocessing.active_children())
    begin = time.monotonic()
    with pytest.raises(DaydreamError, match="the first one fails"):
        map_on("processes:2", sleeping, 60, range(4))

    assert time.monotonic() - begin < 30  # not a minute
    assert set(multiprocessing.active_children()) <= before


def test_a_worker_that_dies_is_told():
    with pytest.raises(DaydreamError, match="a worker process ended before it had answered"):
        map_on("processes:2", dying, None, range(4))


def test_a_pattern_is_sent_uncompiled():
    assert pickle.loads(pickle.dumps(regex("a+"))).findall("aab") == ["aa"]


def test_what_cannot_be_sent_is_told():
    with pytest.raises(DaydreamError, match="cannot be sent to a worker process"):
        map_on("processes:1", lambda shared: shared, None, [1])


def test_engines_of_dask_by_name():
    need_dask()
    assert engine_of("dask:3") == Engine("dask", 3)
    assert engine_of("dask:tcp://host:8786") == Engine("dask", address="tcp://host:8786")
    assert engine_of("dask:tcp://host:8786").elsewhere
    assert not engine_of("dask").elsewhere


@pytest.mark.parametrize(
    "text", ["ray", "local:2", "processes:", "processes:0", "processes:-1", "processes:a", ""]
)
def test_engines_that_there_are_not(text):
    with pytest.raises(DaydreamError, match="engine"):
        engine_of(text)


def test_without_dask_the_engine_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(DaydreamError, match=r"pip install -e '\.\[dask\]'"):
        engine_of("dask:2")


# Ranks that are read side by side -------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(3):
        PROGRAMS["multi_stream"]().run(steps=6).write(folder / f"rank{rank}.json", 2, 4)
    return folder


def all_of(trace):
    """Return a trace's content in a form that can be compared."""
    columns = {name: column.tolist() for name, column in trace.columns.items()}
    return trace.metadata, trace.texts, columns


def test_ranks_read_by_processes_are_the_same_trace(ranks):
    here, there = (daydream.load(ranks, ranks=[5, 3, 8], engine=each) for each in ("local", "processes:2"))
    assert all_of(here) == all_of(there)


def test_a_file_that_a_worker_elsewhere_does_not_see_is_told(tmp_path):
    from daydream.collect.importers import _reading
    from daydream.collect.importers.formats import Options

    with pytest.raises(TraceError, match=r"(?s)sees no file .*rank0.json.*a folder that the machines share"):
        _reading((True, Options(), None))(([tmp_path / "rank0.json"], "kineto"))
