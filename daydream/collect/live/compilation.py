"""When torch compiles: it says so itself, to those who asked before it began."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from daydream.collect.live.torch_compiler import COMPILATIONS, on_compilations


def watch_compilations(tell: Callable[[bool], object]) -> None:
    """Call a function with True when torch begins to compile, with False when it is done.

    The compiler is not loaded for that: most scripts do without, and it takes a second.
    """
    when_imported(COMPILATIONS, lambda: on_compilations(tell))


def when_imported(module: str, act: Callable[[], object]) -> None:
    """Call a function once a module is imported: now, if it was, else behind its first import."""
    if module in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _WhenImported(module, act))


class _WhenImported:
    """Finds a module where everybody finds it, and calls a function once it is there."""

    def __init__(self, module: str, act: Callable[[], object]) -> None:
        self._module = module
        self._act = act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return that module's own spec, whose loader goes on to us; None for every other module."""
        if name != self._module:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module: Any) -> None:
            del loader.exec_module  # the loader is the real one again
            execute(module)
            self._act()

        loader.exec_module = exec_module
        return spec
