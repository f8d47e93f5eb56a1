"""Examples, the public traces beside the repository (or a test is skipped), the text of a view."""

from functools import cache
from pathlib import Path

import pytest

import daydream
from daydream.collect.importers import import_trace
from daydream.errors import TraceError
from daydream.report.blocks import view
from daydream.report.text import text_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
GPT = EXAMPLES / "synthetic_gpt_gpu.json.gz"
TRACES = ROOT.parent / "shared" / "traces"


@cache
def _replay(path):
    return daydream.replay(daydream.load(path))


def shared_trace(name):
    """Return the path of a public trace, or skip the test."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the public trace {name} is not at hand")
    return path


def shared_replay(name):
    """Return the replay of a public trace (made once), or skip the test."""
    return _replay(shared_trace(name))


def refused(*paths):
    """Return what is said of files that cannot be imported: one line."""
    with pytest.raises(TraceError) as caught:
        import_trace(paths)
    said = str(caught.value)
    assert "\n" not in said
    return said


def view_text(result, **options):
    """Return the text of a result's view, as it is piped."""
    return text_of(view(result, **options))
