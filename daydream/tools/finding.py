"""Tools by name, by the path of a file, or by another package's entry point."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
from types import ModuleType

from daydream.text import meant
from daydream.tools.tool import MARK, ToolError
from daydream.transforms.registry import load_file, loading

ENTRY_POINTS = "daydream.tools"


def tools() -> dict[str, str]:
    """Return the names of the tools that ship or that installed packages add, and what each gives."""
    from daydream.tools import shipped

    found = {name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in _in(shipped).items()}
    others = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {
        **found,
        **{point.name: f"of {point.value}" for point in others if point.name not in found},
    }


def find_tool(name: str) -> type:
    """Return a tool's class by its name or by the path of a Python file.

    Raises:
        ToolError: there is none, or its file cannot be loaded.
    """
    if name.endswith(".py") or "/" in name:
        return _from_file(name)
    from daydream.tools import shipped

    own = _in(shipped)
    if name in own:
        return own[name]
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        with loading(f"{name}, which is {point.value},"):
            loaded = point.load()
        if isinstance(loaded, type) and hasattr(loaded, MARK):
            return loaded
        raise ToolError(f"{point.value} is no class under @daydream.tool")
    hint = meant(name.replace("_", "-"), tools(), "`daydream tool --list` shows those there are.")
    raise ToolError(f"unknown tool {name!r}. {hint}")


def _from_file(path: str) -> type:
    """Return the one tool that a Python file defines."""
    found = _in(load_file(path))
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ToolError(f"{path} has no class under @daydream.tool")
    raise ToolError(f"{path} has {len(found)} tools ({', '.join(found)}); leave one of them in it")


def _in(module: ModuleType) -> dict[str, type]:
    """Return the tools that a module defines, by name."""
    return {
        vars(cls)[MARK]: cls
        for cls in vars(module).values()
        if isinstance(cls, type) and MARK in vars(cls) and cls.__module__ == module.__name__
    }
