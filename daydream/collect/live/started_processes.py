"""Which of the processes that a script starts are recorded too: its ranks and workers, and no others.

What reaches into a process is in its environment. It stays there until torch is imported, since whoever
starts the training may be any program; what the training process starts are ranks, workers and helpers
(compilers, `git`, other Python programs), and the helpers are to find the environment as it is without us.
Ranks are told by the number that they are given in their environment, workers by how `multiprocessing`
starts them. A launcher's processes are the training itself, so it keeps its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daydream.collect.live.messages import VARIABLE

PATH = "PYTHONPATH"
INJECT = Path(__file__).parent.parent / "launcher" / "inject"
RANKS = ("RANK", "LOCAL_RANK")  # what torch's launcher sets, and those that start ranks in its way
WORKERS = (b"--multiprocessing-fork", b"multiprocessing.forkserver")
LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "colossalai"}
LAUNCHING_MODULES = (
    "torch.distributed.",
    "accelerate.",
    "deepspeed.",
    "horovod.",
    "composer.",
    "colossalai.",
)
WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}  # options of Python that a word follows


def leave_helpers_alone(folder: str) -> None:
    """Take what reaches into processes out of the environment, and give it to ranks and workers."""
    try:
        import _posixsubprocess
    except ImportError:  # Windows: processes are started by other means
        return
    if is_launcher(sys.orig_argv):
        return
    _take(os.environ)
    starting: Any = _posixsubprocess
    real = starting.fork_exec

    # What `subprocess` and `multiprocessing` alike start a process with.
    def fork_exec(
        args: Sequence[Any], paths: Any, close: Any, kept: Any, cwd: Any, env: Any, *more: Any
    ) -> Any:
        return real(args, paths, close, kept, cwd, environment_of(args, env, folder), *more)

    starting.fork_exec = fork_exec
    subprocess = sys.modules.get("subprocess")
    if getattr(subprocess, "_fork_exec", None) is real:  # imported by name since Python 3.11
        subprocess._fork_exec = fork_exec  # type: ignore[union-attr]  # noqa: SLF001
    _follow_exec(folder)


def environment_of(args: Sequence[Any], env: list[bytes] | None, folder: str) -> list[bytes] | None:
    """Return the environment of a process that is about to be started, None for that of this process."""
    worker = any(sign in os.fsencode(word) for word in args for sign in WORKERS)
    if env is None and not worker:
        return None
    pairs = os.environb if env is None else dict(pair.partition(b"=")[::2] for pair in env)
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in pairs.items()}
    rank = any(name in variables and variables[name] != os.environ.get(name) for name in RANKS)
    _take(variables)
    if worker or rank:
        variables |= _given(variables, folder)
    return [os.fsencode(f"{name}={value}") for name, value in variables.items()]


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether this Python command line is that of a program that starts the training."""
    words = iter(command[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word == "-m":
            return next(words, "").startswith(LAUNCHING_MODULES)
        elif not word.startswith("-"):
            return Path(word).stem in LAUNCHERS
    return False


def _given(variables: Mapping[str, str], folder: str) -> dict[str, str]:
    path = os.pathsep.join([str(INJECT), *filter(None, [variables.get(PATH)])])
    return {VARIABLE: folder, PATH: path}


def _take(variables: Any) -> None:
    variables.pop(VARIABLE, None)
    places = variables.get(PATH, "").split(os.pathsep)
    if str(INJECT) in places:
        places.remove(str(INJECT))
        if places:
            variables[PATH] = os.pathsep.join(places)
        else:
            del variables[PATH]


def _follow_exec(folder: str) -> None:
    """Let a script that starts itself anew in its own process (`os.exec...`) be recorded there."""
    own = os.getpid()
    execv = os.execv
    execve = os.execve

    def with_ours(env: Mapping[Any, Any]) -> Mapping[Any, Any]:
        if os.getpid() != own:  # a forked child, which becomes another program
            return env
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        return variables | _given(variables, folder)

    def anew(path: Any, args: Any) -> None:
        if os.getpid() == own:
            execve(path, args, dict(with_ours(os.environ)))
        execv(path, args)

    def anew_in(path: Any, args: Any, env: Mapping[Any, Any]) -> None:
        execve(path, args, dict(with_ours(env)))

    replacing: dict[str, Callable[..., None]] = {"execv": anew, "execve": anew_in}
    for name, function in replacing.items():
        setattr(os, name, function)
