"""Runs at the start of every Python process of a collected run; hands over once torch has been imported.

A process that never imports torch pays for one empty file and an entry in `sys.meta_path`.
This folder is in front of PYTHONPATH for the sake of the processes that the script starts;
it is taken off `sys.path`, so the script sees the path it would have without us, and a
`sitecustomize` that this one hides is run in its place.

A process that imports torch trains, and says so in the environment of those that it starts. Ranks are told
by the number that they are given there, workers by how `multiprocessing` starts them; the others are helpers
(compilers, other programs), and find the environment as it is without us.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself is not imported: this runs in every process
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "DAYDREAM_COLLECT"  # the folder in which the processes of a run meet
OWNER = "DAYDREAM_COLLECT_OWNER"  # the process that trains, and its ranks
RANKS = ("RANK", "LOCAL_RANK")  # what torch's launcher sets, and those that start ranks in its way
WORKERS = ("--multiprocessing-fork", "multiprocessing.forkserver")
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.abspath(os.path.join(HERE, *[os.pardir] * 4))  # where the package daydream lies


def _find(name: str, path: Any = None, *, but: Any = None) -> Any:
    """Return a module's spec as the import system would find it, or None."""
    for finder in list(sys.meta_path):
        if finder is not but and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


class AfterImport:
    """Finds a module where everybody finds it, and calls a function once it has run, one time."""

    def __init__(self, module: str, act: Any) -> None:
        self.module = module
        self.act = act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return that module's own spec, whose loader goes on to us; None for every other module."""
        if name != self.module:
            return None
        spec = _find(name, path, but=self)
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module: Any) -> None:
            # The loader is the real one again, for those who ask it for source.
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act()

        loader.exec_module = exec_module
        return spec


def _start() -> None:
    """Start collecting. Whatever fails here must not stop the script."""
    os.environ[OWNER] = ",".join([str(os.getpid()), *(os.environ.get(name, "") for name in RANKS)])
    added = PACKAGES not in sys.path
    if added:  # a script may run from a checkout, or in an environment that does not hold daydream
        sys.path.append(PACKAGES)
    try:
        from daydream.collect.live import child

        child.start(os.environ[VARIABLE])
    except Exception:
        import traceback

        sys.stderr.write(f"daydream could not start in this process:\n{traceback.format_exc()}")
    finally:
        if added and PACKAGES in sys.path:
            sys.path.remove(PACKAGES)


def _is_helper() -> bool:
    """Return whether a process that trains started this one for something else."""
    owner = os.environ.get(OWNER)
    words = getattr(sys, "orig_argv", ())  # helpers may run on an older Python
    if owner is None or any(sign in word for word in words for sign in WORKERS):
        return False
    pid, *ranks = owner.split(",")
    alike = all(os.environ.get(name, ranks[at]) == ranks[at] for at, name in enumerate(RANKS))
    return pid != str(os.getpid()) and alike


def _leave() -> None:
    """Take what reaches into processes out of the environment."""
    os.environ.pop(VARIABLE, None)
    os.environ.pop(OWNER, None)
    places = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in places if os.path.abspath(place) != HERE]
    if places:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)


def _arrived() -> bool:
    """Leave a sign that this process was reached. False if the run is over, or was none of ours."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return False
    if _is_helper():
        _leave()
        return False
    try:
        os.close(
            os.open(os.path.join(folder, f"{os.getpid()}.hello"), os.O_CREAT | os.O_WRONLY, 0o600)
        )
    except OSError:
        return os.path.isdir(folder)  # a full disk is no reason to stay away
    return True


def _make_way() -> None:
    """Run the `sitecustomize` that this one hides."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or os.curdir) != HERE]
    spec = _find("sitecustomize")
    if spec is None or getattr(spec.loader, "exec_module", None) is None:
        return
    module = type(sys)(spec.name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if _arrived():
        sys.meta_path.insert(0, AfterImport("torch", _start))
    _make_way()
