"""Blocks of steps with and without a change: who takes turns when, what counts, and what is undone."""

from contextlib import contextmanager, nullcontext
from itertools import pairwise

import pytest

from daydream.collect.live.recorder import Phase
from daydream.collect.live.timed_steps import WARM_UP, Alternating, UnprofiledSteps
from daydream.predict.confirm import Blocks


class Script:
    """A script whose steps take 10 ns, 7 with the change; time stands still otherwise."""

    def __init__(self):
        self.now, self.changed = 0, False
        self.log = []

    @contextmanager
    def change(self):
        self.changed = True
        yield
        self.changed = False

    def step(self):
        self.log.append(self.changed)
        self.now += 7 if self.changed else 10

    def blocks(self, *, rounds, steps):
        return Alternating(self.change, rounds=rounds, steps=steps, clock=lambda: self.now)


def run(script, steps):
    """Let the script take steps until there are enough."""
    while not steps.enough:
        script.step()
        steps.end_step()


def test_blocks_take_turns_every_other_round_backwards():
    script = Script()
    blocks = script.blocks(rounds=2, steps=2)
    run(script, blocks)

    assert blocks.result() == {"base": [10, 10], "again": [10, 10], "changed": [7, 7]}
    assert not script.changed
    one = 1 + 2  # a block: a step that does not count, and two that do
    warm = 1 + WARM_UP
    expected = [True] * warm + [False] * 2 * one + [True] * 2 * one + [False] * 2 * one
    assert script.log == expected
    assert sum(a != b for a, b in pairwise(script.log)) == 3


class Behind:
    """A device 10 ns a step behind a script whose own steps take 4 ns."""

    def __init__(self):
        self.now = self.done = 0
        self.waits = 0

    def step(self):
        self.now += 4
        self.done = max(self.done, self.now) + 10

    def settle(self):
        self.waits += 1
        self.now = max(self.now, self.done)
        return True


def test_a_device_that_is_behind_is_waited_for_where_the_steps_that_count_begin_and_end():
    script = Behind()
    blocks = Alternating(nullcontext, rounds=1, steps=3, clock=lambda: script.now, settle=script.settle)
    run(script, blocks)

    # Three steps from one wait to the next: the first is launched after 4 ns, then the device works 30 ns.
    assert blocks.result() == {kind: [pytest.approx(34 / 3)] for kind in ("base", "again", "changed")}
    assert script.waits == 2 * 4  # blocks: the warm-up and three


def test_a_step_that_is_left_out_is_made_up_for():
    script = Script()
    blocks = script.blocks(rounds=1, steps=1)
    for _ in range(1 + WARM_UP + 1):
        script.step()
        blocks.end_step()
    script.now += 1_000  # the script saves a checkpoint
    blocks.leave_out()
    for _ in range(1 + 1 + 1 + 1 + 2):
        assert not blocks.enough
        script.step()
        blocks.end_step()
    assert blocks.enough
    assert blocks.result()["base"] == [10]


def test_a_script_that_ends_early_leaves_its_whole_rounds_and_no_change():
    script = Script()
    blocks = script.blocks(rounds=5, steps=1)
    for _ in range(1 + WARM_UP + 3 * 2 + 1):
        script.step()
        blocks.end_step()
    assert (blocks.rounds, script.changed) == (1, True)
    blocks.close()
    assert not script.changed
    assert {kind: len(times) for kind, times in blocks.result().items()} == dict.fromkeys(
        ("base", "again", "changed"), 1
    )


def test_ratios_are_taken_within_rounds():
    # The machine slows down by half in the second round: 5, 7.5, 5 are half of 10, 15, 10 each time.
    blocks = Blocks(base=[10.0, 15.0, 10.0], again=[10.0, 16.5, 10.0], changed=[5.0, 7.5, 5.0])
    assert (blocks.baseline_ns, blocks.confirmed_ns, blocks.speedup, blocks.control) == (10, 5, 2, 1)


def test_without_a_device_what_our_hooks_took_is_no_part_of_a_step():
    ticks = iter([0, 10, 20, 31, 42])
    steps = UnprofiledSteps(3, clock=lambda: next(ticks))
    while not steps.enough:
        steps.end_step()

    assert steps.durations_ns(hooks_ns=4) == [6, 7, 7]


def test_the_hooks_of_a_step_are_those_of_all_its_markers():
    phase = Phase(None)  # type: ignore[arg-type]
    assert phase.hooks_of_step_ns() == 0
    for last in (50, 53, 90):  # three steps of three backward passes each, and the begin of a fourth
        for duration in (3, 4, 5):
            phase.add_hook(duration, ended=False)
        phase.add_hook(last, ended=True)
    phase.add_hook(1_000, ended=False)

    assert phase.hooks_of_step_ns() == 3 + 4 + 5 + 53
