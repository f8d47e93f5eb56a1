"""No test reads or writes the cache of whoever runs it; those of the cache name a folder of their own."""

import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["DAYDREAM_CACHE"] = "off"
settings.register_profile("daydream", deadline=None)  # a busy machine must fail no test
settings.load_profile("daydream")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background: commands would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)

SKIPPED = os.environ.get(
    "SKIPPED_TESTS"
)  # a file that gets the ids of what is skipped: `pytest @FILE` runs it


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order")


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)


def pytest_runtest_logreport(report):
    _note(report)


def pytest_collectreport(report):
    _note(report)


def _note(report):
    if SKIPPED and report.skipped and not hasattr(report, "wasxfail"):
        with Path(SKIPPED).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(scope="session")
def sixty_steps(tmp_path_factory):
    """A trace of sixty steps, as a file, beside it `trace.json`, as a profiler would write it."""
    from long_recording import record

    return record(tmp_path_factory.mktemp("sixty_steps"))


@pytest.fixture
def long(sixty_steps, monkeypatch):
    """The trace of sixty steps, which is a long recording here: a third of it is enough."""
    from long_recording import look_at_some

    look_at_some(sixty_steps, monkeypatch)
    return sixty_steps
