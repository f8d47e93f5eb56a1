"""Work on several workers, arrays, and the memory that a process gives back."""

import os
import pickle
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.programs import PROGRAMS

import daydream
from daydream import TraceError, arrays
from daydream.arrays import distinct, distinct_rows, last_before, percentile
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.parallel import Engine, engine_of, map_on

# Engines: the same answers in the same order wherever they are found, and errors that say what is wrong


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


@pytest.mark.slow
def test_ranks_read_by_processes_are_the_same_trace(ranks):
    here, there = (daydream.load(ranks, ranks=[5, 3, 8], engine=each) for each in ("local", "processes:2"))
    assert all_of(here) == all_of(there)


def test_a_file_that_a_worker_elsewhere_does_not_see_is_told(tmp_path):
    from daydream.collect.importers import _reading
    from daydream.collect.importers.formats import Options

    with pytest.raises(TraceError, match=r"(?s)sees no file .*rank0.json.*a folder that the machines share"):
        _reading((True, Options(), None))(([tmp_path / "rank0.json"], "kineto"))


# Distinct values, numbers and percentiles are those of NumPy, to the last bit, and load no masked arrays


WHOLE = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=60)
REAL = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60)


@given(WHOLE | REAL, st.lists(st.floats(0, 100) | st.integers(0, 100), min_size=1, max_size=5))
def test_percentiles_are_those_of_numpy_to_the_last_bit(values, percents):
    assert percentile(values, percents).tolist() == np.percentile(values, percents).tolist()
    assert float(percentile(values, percents[0])) == float(np.percentile(values, percents[0]))


SMALL = st.lists(
    st.tuples(st.integers(-1, 6), st.integers(0, 3), st.sampled_from([-1, 10, 2**40])), max_size=40
)


@given(SMALL, st.sampled_from([np.int8, np.int16, np.int32, np.int64]))
def test_values_and_rows_are_numbered_as_numpy_numbers_them(rows, dtype):
    table = np.array(rows, np.int64).reshape(-1, 3)
    for column in (table[:, 0].astype(dtype), table[:, 2]):
        known, place = np.unique(column, return_inverse=True)
        found, number = distinct(column)
        assert (found.dtype, found.tolist(), number.tolist()) == (
            column.dtype,
            known.tolist(),
            place.tolist(),
        )
    _, first, place = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = [part.tolist() for part in distinct_rows(list(table.T))]
    assert found == [first.tolist(), place.reshape(-1).tolist()]


def test_the_last_row_before_a_time_is_of_its_own_group():
    #  group 0  |a at 10|      |b at 30|
    #  group 1         |c at 20|
    at = np.array([(0, 9), (0, 10), (0, 30), (1, 19), (2, 99)]).T

    assert last_before(np.array([0, 1, 0]), np.array([30, 20, 10]), *at).tolist() == [-1, 2, 0, -1, -1]


# What is left behind: memory that is freed, in a process of our own and a user's; threads of Arrow


FREED = """\
import resource
import numpy as np
from daydream.arrays import hand_back_freed_memory, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(1 << 18) for _ in range(8)]  # of 2 MiB
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

usual = faults()
assert keep_freed_memory()
assert faults() < usual / 5
blocks = [bytearray(b"x") * (1 << 20) for _ in range(100)]
del blocks[::2]
before = resident()
hand_back_freed_memory()
assert (before - resident()) * 4096 > 40 << 20
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept_for_the_next_arrays_and_handed_back_at_the_end():
    subprocess.run([sys.executable, "-c", FREED], check=True)


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not arrays.keep_freed_memory()
    arrays.hand_back_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    import ctypes

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not arrays.keep_freed_memory()
    arrays.hand_back_freed_memory()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_trace_is_read_and_written_without_threads_of_arrow(tmp_path):
    # Its pools end with the process, and on a busy machine abort one in twenty that end right away.
    code = """
import os, sys
import pyarrow.parquet
import daydream
from two_streams import steps

before = len(os.listdir("/proc/self/task"))
steps().save(sys.argv[1])
daydream.load(sys.argv[1])
print(len(os.listdir("/proc/self/task")) - before)
"""
    run = [sys.executable, "-c", code, str(tmp_path / "trace.parquet")]
    found = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    assert found.stdout == "0\n"
