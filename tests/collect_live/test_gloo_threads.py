"""A process that ends waits for gloo's threads: threads of our own stand in for them."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daydream.collect.live import gloo_threads

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads have names on Linux")
SET_NAME = 15  # PR_SET_NAME of prctl(2)
SOME, MANY = 500_000, 5_000_000  # rounds: some tenths of a second, and seconds


@contextmanager
def computing(rounds: int, name: str = gloo_threads.RUNNER) -> Iterator[threading.Event]:
    """A thread with a name that computes, all the time without the interpreter; the event says it is done."""
    begun, done, leave = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)
        begun.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
        done.set()
        leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    try:
        yield done
    finally:
        leave.set()
        thread.join()


def test_a_thread_of_gloo_that_computes_is_waited_for() -> None:
    with computing(SOME) as done:
        gloo_threads.let_gloo_finish()
        assert done.is_set()


def test_a_thread_of_gloo_that_never_rests_is_waited_for_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gloo_threads, "LONGEST_S", 0.1)
    with computing(MANY) as done:
        gloo_threads.let_gloo_finish()
        assert not done.is_set()


def test_other_threads_are_not_waited_for() -> None:
    with computing(MANY, "another") as done:
        gloo_threads.let_gloo_finish()
        assert not done.is_set()


def test_a_thread_that_has_ended_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gloo_threads._tasks
    monkeypatch.setattr(gloo_threads, "_tasks", lambda: [gloo_threads.TASKS / "0", *real()])
    with computing(SOME) as done:
        gloo_threads.let_gloo_finish()
        assert done.is_set()


def test_nothing_is_asked_of_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gloo_threads, "TASKS", tmp_path / "none")
    gloo_threads.let_gloo_finish()
    assert gloo_threads._tasks() == []
