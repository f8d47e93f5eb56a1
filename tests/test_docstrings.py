"""What `help()` says of public names: what you get, in which unit and shape, errors, an example that runs."""

from __future__ import annotations

import importlib
import inspect
import re
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
FUNCTIONS = [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)]
PACKAGES = {"simulate": "daydream.simulate", "collect": "daydream.collect"}  # that are called as functions


def said(thing: object) -> str:
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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_returns_and_raises(name):
    text = said(PUBLIC[name])

    assert "Returns:" in text
    assert "Raises:" in text


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_called_says_it_too(name):
    package = importlib.import_module(PACKAGES[name])

    assert "Raises" in said(getattr(package, name))


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isclass(thing)])
def test_public_methods_say_what_they_are_and_arrays_their_shape(name):
    for member, value in vars(PUBLIC[name]).items():
        function = value.fget if isinstance(value, property) else getattr(value, "func", value)
        function = getattr(function, "__func__", function)
        if member.startswith("_") or not inspect.isfunction(function):
            continue
        assert said(function), f"{name}.{member} says nothing"
        if "ndarray" in str(function.__annotations__.get("return", "")):
            assert re.search(r"\(\w[\w ]*,\)|shape", said(function)), f"{name}.{member}: which shape?"
