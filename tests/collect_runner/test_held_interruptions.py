"""Ctrl-C waits until what we do in the script's process is done, and then means what it always does."""

from __future__ import annotations

import signal
import threading

import pytest

from daydream.collect.live import session
from daydream.collect.live.session import HeldInterruptions


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_comes_behind_the_work():
    done = []

    def work() -> None:
        with HeldInterruptions() as held:
            assert not held.came
            ctrl_c()
            done.append(held.came)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_inside_another_leaves_it_to_the_outer_one():
    done = []

    def work() -> None:
        with HeldInterruptions() as held:
            with held:
                ctrl_c()
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["outer"]


def test_the_same_one_passed_on_is_one_and_a_later_one_does_not_wait(monkeypatch):
    done = []

    def work() -> None:
        with HeldInterruptions():
            ctrl_c()
            ctrl_c()
            done.append("twice")
            monkeypatch.setattr(session, "AGAIN_S", -1.0)
            ctrl_c()
            done.append("again")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["twice"]


def test_a_script_that_ignores_it_goes_on_doing_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterruptions() as held:
            ctrl_c()
        assert not held.came
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    seen = []

    def work() -> None:
        with HeldInterruptions():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.default_int_handler]


def test_what_failed_meanwhile_is_not_lost():
    def work() -> None:
        with HeldInterruptions():
            ctrl_c()
            raise ValueError("no space")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)
