"""A step that takes long is told: a person in front of a compiling script must not see silence."""

import pytest

from daydream.collect.launcher.runner import LongSteps


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


def test_steps_that_end_in_time_are_not_told():
    watched = Watched()
    for number in range(5):
        watched.steps.heard(f"warming up: step {number} of 5")
        assert watched.after(9) == []
    watched.steps.heard("timing 20 steps without the profiler")  # says nothing of its steps
    assert watched.after(100) == []


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
