"""A recording that the tests of reports share."""

import pytest
from machine.programs import PROGRAMS

import daydream


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    """Return the replay of a program that waits for its device: steps 4 to 8 of 12."""
    path = tmp_path_factory.mktemp("replay") / "step.json"
    PROGRAMS["synchronizing"]().run(steps=12).write(path, 4, 8)
    return daydream.replay(path)
