"""A step that a change does not move says what it waits for instead."""

from two_streams import steps

import daydream


def said(change):
    return [note for note in daydream.whatif(steps(), change).notes if "does not move" in note]


def test_work_that_nothing_waits_for_leaves_the_step_to_what_it_waits_for():
    def halve_short(graph):
        graph.select(name="^short_kernel").scale(0.5)

    assert said(halve_short) == [
        "The step's time does not move with this change: it waits for the GPU (60%)."
    ]
