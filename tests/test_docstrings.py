"""What `help()` says of public names: what you get, in which unit and shape, errors, an example that runs."""

import inspect
import textwrap
from pathlib import Path

import pytest

import daydream

ROOT = Path(__file__).parent.parent
PUBLIC = {name: getattr(daydream, name) for name in daydream.__all__}
CLASSES = [
    name for name, thing in PUBLIC.items()
    if inspect.isclass(thing) and not issubclass(thing, Exception) and name != "Optimization"
]  # fmt: skip


def said(thing):
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_class_runs(name, monkeypatch, capsys):
    _, found, example = said(PUBLIC[name]).partition("Example::\n")

    assert found, f"{name} shows no example"
    lines = textwrap.dedent(example).strip().splitlines()
    assert 1 < len(lines) <= 5
    monkeypatch.chdir(ROOT)
    exec("\n".join(lines), {"daydream": daydream})
    assert "Error" not in capsys.readouterr().out
