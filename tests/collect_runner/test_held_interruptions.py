"""Ctrl-C waits until what we do in the script's process is done, and then means what it always does."""

import signal
import threading

import pytest

from daydream.collect.live import recorder
from daydream.collect.live.recorder import held_interruptions


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def test_it_comes_behind_the_work():
    done = []

    def work():
        with held_interruptions():
            ctrl_c()
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_one_passed_on_is_one_and_a_later_one_does_not_wait(monkeypatch):
    done = []

    def work():
        with held_interruptions():
            ctrl_c()
            ctrl_c()
            done.append("twice")
            monkeypatch.setattr(recorder, "AGAIN_S", -1.0)
            ctrl_c()
            done.append("again")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["twice"]


def test_a_script_that_ignores_it_goes_on_doing_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interruptions():
            ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    seen = []

    def work():
        with held_interruptions():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.default_int_handler]


def test_what_failed_meanwhile_is_not_lost():
    def work():
        with held_interruptions():
            ctrl_c()
            raise ValueError("no space")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)
