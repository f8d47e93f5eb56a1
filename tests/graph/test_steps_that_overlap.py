"""Steps whose work overlaps: several requests at once, each on its own stream. Times in us."""

from small_traces import call, launched, trace

import daydream


def overlapping():
    #  thread 1  |step 0: a, b|step 1: c|step 2: d|
    #  stream 7  |a 10 to 40|
    #  stream 8      |b 20 to 300.....................|   step 0 ends behind steps 1 and 2
    #  stream 7           |c 110 to 140| |d 210 to 400|
    return trace(
        launched("a", 0, 10, 40),
        launched("b", 8, 20, 300, stream=8),
        launched("c", 100, 110, 140),
        launched("d", 200, 210, 400),
        steps=(0, 100, 200, 290),
    )


def test_a_step_is_not_done_before_the_one_before_it_in_the_replay_either():
    replay = daydream.replay(overlapping())
    assert [step.measured_ns for step in replay.steps] == [0, 100_000]
    assert [step.replayed_ns for step in replay.steps] == [0, 100_000]
    assert replay.max_error == 0


def test_a_call_that_lasts_beyond_the_range_of_its_step_does_not_complete_it():
    #  thread 2  |a call of step 1, from 150 to 900, which waits for nothing that is recorded
    #  stream 7  |c 110 to 190|tail 191 to 260|
    rows = [
        launched("a", 0, 10, 90),
        launched("c", 100, 110, 190),
        call("poll", 150, 900, 99, tid=2),
        launched("tail", 160, 191, 260),
    ]
    replay = daydream.replay(trace(rows, steps=(0, 100, 250)))
    assert [step.measured_ns for step in replay.steps] == [260_000 - 90_000]
    assert [step.replayed_ns for step in replay.steps] == [260_000 - 90_000]
