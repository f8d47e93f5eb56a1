"""Ctrl-C waits until what we do in the script's process is done, and then means what it always does."""

import signal
import threading

import pytest

from daydream.collect.launcher.runner import LongSteps
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


class Watched:
    """What is said as the time passes."""

    def __init__(self):
        self.now, self.said = 0.0, []
        self.steps = LongSteps(self.said.append, clock=lambda: self.now)

    def after(self, seconds):
        for _ in range(seconds):
            self.now += 1
            self.steps.look()
        said, self.said[:] = list(self.said), []
        return said


def test_it_is_said_after_ten_seconds_and_then_ever_more_seldom():
    watched = Watched()
    watched.steps.heard("warming up: step 2 of 5")

    assert watched.after(9) == []
    assert watched.after(80) == [f"step 3 has taken {seconds} s" for seconds in (10, 20, 40, 80)]


def test_before_the_first_step_only_compiling_tells_that_it_runs():
    watched = Watched()
    watched.steps.heard("waiting for training steps")
    assert watched.after(15) == ["no training step yet after 10 s"]

    watched.steps.compiles(True)
    assert watched.after(45) == [f"compiling: step 1 has taken {seconds} s" for seconds in (10, 20, 40)]
    watched.steps.compiles(False)
    assert watched.after(40) == ["step 1 has taken 80 s"]


def test_torch_itself_says_when_it_compiles(folder):
    pytest.importorskip("torch", reason="compiles with torch")
    folder.script(
        """
        import sys
        from daydream.collect.live.torch_compiler import watch_compiler
        told = []
        before = len(sys.meta_path)
        watch_compiler(told.append)
        import torch
        assert told == []
        function = torch.compile(lambda x: x + 1, backend="eager")
        function(torch.ones(2))
        function(torch.ones(2))
        print(told, len(sys.meta_path) - before)
        """,
        begin="",
    )
    done = folder.python("train.py")

    assert done.out == "[True, False] 1\n", done.err  # what waits for Inductor, which it does without
