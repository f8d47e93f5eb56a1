"""A recording that is long by a test's own measure: of sixty steps twenty stand for all."""

from machine.programs import PROGRAMS

import daydream
from daydream.trace import recorded_steps

STEPS, SOME = 60, 20


def record(folder):
    """Write `trace.json`, as a profiler would, and `trace.parquet`; return that."""
    PROGRAMS["multi_stream"]().run(steps=STEPS + 4).write(folder / "trace.json", 3, 2 + STEPS)
    daydream.load(folder / "trace.json").save(folder / "trace.parquet")
    return folder / "trace.parquet"


def look_at_some(trace, monkeypatch):
    """Let half of this trace be long, and a third of it enough."""
    rows = len(daydream.load(trace))
    monkeypatch.setattr(recorded_steps, "ENOUGH", rows * SOME // STEPS + 1)
    monkeypatch.setattr(recorded_steps, "LONG", rows // 2)
