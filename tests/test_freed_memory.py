"""What is left behind: memory that is freed, in a process of our own and a user's; threads of Arrow."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from daydream import parallel

LARGE_ARRAYS = """\
import resource, sys
import numpy as np
from daydream.parallel import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "kept" else None
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    arrays = [np.ones(1 << 18) for _ in range(8)]  # of 2 MiB
    del arrays
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    run = [sys.executable, "-c", LARGE_ARRAYS, how]
    kept, faults = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
    assert kept == ("True" if how == "kept" else "None")
    return int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_arrays_that_are_made_again_and_again_cost_no_new_pages():
    assert page_faults("kept") < page_faults("handed back") / 5


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not parallel.keep_freed_memory()
    parallel.hand_back_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    import ctypes

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not parallel.keep_freed_memory()
    parallel.hand_back_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_lies_freed_between_other_things_is_handed_back():
    code = """
import sys
from daydream.parallel import hand_back_freed_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

keep_freed_memory()
blocks = [bytearray(b"x") * (1 << 20) for _ in range(100)]
del blocks[::2]
before = resident()
hand_back_freed_memory()
print((before - resident()) * 4096 >> 20)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 40


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
