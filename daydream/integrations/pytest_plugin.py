"""The fixture `assert_step_time`, which pytest finds wherever daydream is installed (entry point `pytest11`).

Every run of pytest there imports this file: it loads nothing else of daydream's before the fixture is used.
"""

from __future__ import annotations

import pytest

from daydream.integrations.step_time import StepTime


@pytest.fixture
def assert_step_time() -> type[StepTime]:
    """Return what holds a trace's step to a limit: `assert_step_time("t.parquet").below(9.5)`.

    With `whatif="amp"` it is the predicted step; `.not_slower_than(baseline, percent=3)` compares.
    """
    return StepTime
