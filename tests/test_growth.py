"""Growth: a recording twice as long takes twice the work, counted in calls and never timed.

Work that does not depend on the length drops out of differences: from 8 to 16 steps as much more is done
as from 4 to 8, twice over. What grows as the square would come out as four times.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from machine.programs import multi_stream

import daydream

STEPS = (4, 8, 16)
MOST = 2.2  # times the calls for twice the steps; 2 where growth is linear
QUESTIONS: dict[str, Callable[[daydream.Trace], Any]] = {
    "replay": lambda trace: daydream.replay(trace).to_json(),
    "what-if": lambda trace: daydream.whatif(trace, "amp").to_json(),
    "what-if that removes": lambda trace: daydream.whatif(trace, "fused-adam").to_json(),
    "rank": lambda trace: daydream.rank(trace).to_json(),
    "explain": lambda trace: daydream.explain(trace).to_json(),
}


def calls_of(work):
    """Return how many functions are called, those of C too."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("growth")
    run = multi_stream(layers=3).run(steps=max(STEPS) + 2)
    return [run.write(folder / f"{steps}.json.gz", 1, steps) for steps in STEPS]


@pytest.mark.parametrize("question", QUESTIONS)
def test_twice_the_steps_take_twice_the_calls(files, question):
    traces = [daydream.load(file) for file in files]
    ask = QUESTIONS[question]
    ask(traces[0])  # modules are imported, patterns compiled
    few, more, most = (calls_of(lambda trace=trace: ask(trace)) for trace in traces)
    assert few < more < most
    assert most - more <= MOST * (more - few)


def test_import_of_twice_the_steps_takes_twice_the_calls(files):
    daydream.load(files[0])
    few, more, most = (calls_of(lambda file=file: daydream.load(file)) for file in files)
    assert few < more < most
    assert most - more <= MOST * (more - few)
