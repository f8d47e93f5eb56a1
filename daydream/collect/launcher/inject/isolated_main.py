"""Runs a script, or `-m module`, in place of an interpreter that reads no PYTHONPATH or `sitecustomize`.

    python -I isolated_main.py train.py ARGS...

The script becomes this process's own `__main__`: what `runpy.run_path` makes is gone before exit
handlers run, and pickle cannot find it. Imports nothing of daydream, which may not be on the path.
"""

from __future__ import annotations

import os
import sys


def _run() -> None:
    import io
    import runpy

    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]
    hook = os.path.join(here, "sitecustomize.py")
    with open(hook, "rb") as file:
        exec(compile(file.read(), hook, "exec"), {"__name__": "daydream_hook", "__file__": hook})  # noqa: S102
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        if not sys.flags.isolated:
            sys.path.insert(0, os.getcwd())
        as_main = getattr(runpy, "_run_module_as_main", None)  # what `python -m` calls
        if as_main is not None:
            as_main(sys.argv[0])
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    script = sys.argv[0]
    if not sys.flags.isolated:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    if not os.path.isfile(script):  # a folder or an archive with a `__main__`
        runpy.run_path(script, run_name="__main__")
        return
    with io.open_code(os.path.abspath(script)) as file:
        code = compile(file.read(), script, "exec")
    space = sys.modules["__main__"].__dict__
    for name in [name for name in space if not (name.startswith("__") and name.endswith("__"))]:
        del space[name]
    space.update(__file__=script, __doc__=None, __spec__=None)
    space.pop("__annotations__", None)
    exec(code, space)  # noqa: S102 - the script, which the user asked for


_run()
