"""Layers: a range in the recording around every module's forward call, and the modules' paths.

Ranges carry a number, not a path. Paths are settled when recording is over, as a module that
was called alone may turn out to be a part of one that is called later.

How long threads ran, read now and then: a pause longer than that was time off the CPU.

What a thread waits for a CPU counts as if it ran: a machine of its own would have given it one.
The system counts both for each thread. Known on Linux; elsewhere nothing is recorded.
"""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daydream.collect.live.torch_compiler import leave_uncompiled
from daydream.collect.live.torch_private import range_type
from daydream.trace.schema import BY_CLOCK, FIELDS, Columns, Texts

THREADS = "/proc/self/task"
SHARE = 100  # looks take at most this part of the time: 0.05 ms each where 20 threads sleep
Look = tuple[int, dict[int, int]]


class CpuTimes:
    """When it was looked, in ns since 1970, and how long each thread had run by then or been ready, in ns."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # CPU time of each thread, and that with its delays
        self._since_ns = time.perf_counter_ns()
        self._spent_ns = 0

    def look(self) -> None:
        """Read the times of each thread; does nothing where looks took too much of the time so far."""
        if SHARE * self._spent_ns > time.perf_counter_ns() - self._since_ns:
            return
        began = time.thread_time_ns()
        at = time.time_ns()
        known = self._known
        with suppress(OSError, ValueError, IndexError):
            for thread in map(int, os.listdir(THREADS)):  # noqa: PTH208 - paths take longer
                ran = time.clock_gettime_ns(~thread << 3 | 6)  # the clock of a thread, to Linux
                if known.get(thread, (-1, 0))[0] != ran:
                    known[thread] = ran, ran + delay_ns(thread)
            self.looks.append((at, {thread: ready for thread, (_, ready) in known.items()}))
        self._spent_ns += time.thread_time_ns() - began


def delay_ns(thread: int) -> int:
    """Return how long a thread of this process has been ready and waited for a CPU, in ns."""
    with open(f"{THREADS}/{thread}/schedstat", "rb", 0) as file:
        return int(file.read().split()[1])


def add_cpu_times(
    columns: Columns,
    texts: Texts,
    looks: Sequence[Look],
) -> None:
    """Add a row of kind `blocked` for each thread between two looks, with its CPU time."""
    spans = [
        (at, until - at, thread, used - before[thread])
        for (at, before), (until, after) in pairwise(looks)
        for thread, used in after.items()
        if used >= before.get(thread, used + 1)
    ]
    if not spans:
        return
    if "blocked" not in texts["kind"]:  # of the profiler's own rows none may be
        texts["kind"].append("blocked")
    given = dict(zip(("start_ns", "duration_ns", "tid", "cpu_ns"), np.array(spans).T, strict=True))
    given |= {
        "pid": np.full(len(spans), os.getpid()),
        "kind": np.full(len(spans), texts["kind"].index("blocked")),
        "name": np.full(len(spans), len(texts["name"])),
    }
    texts["name"].append(BY_CLOCK)
    columns["cpu_ns"] = np.full(len(columns["kind"]), FIELDS["cpu_ns"].null)
    for name, column in columns.items():
        columns[name] = np.append(column, given.get(name, np.full(len(spans), FIELDS[name].null)))


LAYER_RANGE = re.compile(r"^daydream::layer (\d+)$")
RANGE_NAME = "daydream::layer {}"
LOSS = "loss"
GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"
# A wrapper's only child stands for the wrapper; `module` is a wrapper's word only in torch's own wrappers.
WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "AveragedModel")


class LayerHooks:
    """Module hooks that can be put on and taken off; without them a module's call costs nothing more."""

    def __init__(self) -> None:
        self.modules: list[
            Any
        ] = []  # by number; held while recording, so that an id stays one module's
        self.roots: list[Any] = []  # modules that were called outside all others
        self.cpu_times = CpuTimes()
        self._names: dict[int, str] = {}  # of the ranges, by id of the module
        self._root_ids: set[int] = set()
        self._adding = threading.Lock()
        self._handles: list[Any] = []
        self._filter: Any = None  # of warnings

    @property
    def installed(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def install(self) -> None:
        """Put the hooks on every module of the process."""
        import torch
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )

        is_compiling = torch.compiler.is_compiling
        new_range = range_type()
        local = threading.local()
        name_of = self._names.get
        root_ids = self._root_ids
        add = self._add
        look = self.cpu_times.look

        # A compiled model must stay one graph: both hooks begin with the question and do nothing else then.
        def before(module: Any, _args: Any) -> None:
            if is_compiling():
                return
            try:
                stack = local.stack
            except AttributeError:
                stack = local.stack = []
            if not stack:
                look()
            name = name_of(id(module))
            if name is None or not (stack or id(module) in root_ids):
                name = add(module, is_root=not stack)
            span = new_range(name)
            span.__enter__()
            stack.append((module, span))

        def after(module: Any, _args: Any, _output: Any) -> None:
            if is_compiling():
                return
            stack = getattr(local, "stack", None)
            if not stack:
                return
            if stack[-1][0] is module:
                stack.pop()[1].__exit__(None, None, None)
                return
            if not any(entered is module for entered, _ in stack):
                return  # it was entered before the hooks were on
            while stack:  # an exception left inner ones behind
                entered, span = stack.pop()
                span.__exit__(None, None, None)
                if entered is module:
                    return

        # What torch says of global hooks is of ours; of hooks of the script it was said before.
        warnings.filterwarnings("ignore", message=GLOBAL_HOOKS)
        self._filter = warnings.filters[0]
        # Behind a graph break the hooks are frames of their own; compiled, they would always see one.
        leave_uncompiled(before, after, self._add, look)
        self._handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        filters: Any = warnings.filters
        if self._filter in filters:
            filters.remove(self._filter)

    def _add(self, module: Any, *, is_root: bool) -> str:
        """Note a module that was not called before, or not outermost; return the name of its range."""
        with self._adding:
            if id(module) not in self._names:
                self._names[id(module)] = RANGE_NAME.format(len(self.modules))
                self.modules.append(module)
            if is_root and id(module) not in self._root_ids:
                self.roots.append(module)
                self._root_ids.add(id(module))
            return self._names[id(module)]


@dataclass(frozen=True)
class Paths:
    """Where each module and parameter lives: paths by object id, and the models they were found in."""

    of_module: dict[int, str]
    of_parameter: dict[int, str]
    owner_of_parameter: dict[int, str]
    models: list[Any]


def find_paths(roots: list[Any]) -> Paths:
    """Return the path of every module under the modules that were called outermost.

    A model's own path is its class name, its parts are named as in `named_modules()`, without
    wrappers. Of several models the parts carry the model's name in front. Loss modules are `loss`.
    A module or a parameter in two places has the first one's path.
    """
    from torch.nn.modules.loss import _Loss

    inner = [unwrap(root) for root in roots]
    inside = {id(root) for root in inner if _is_replica(root)}
    for root in inner:
        inside |= {id(module) for module in root.modules() if module is not root}
    tops: list[Any] = []
    for root in inner:
        if id(root) not in inside and not any(root is top for top in tops):
            tops.append(root)
    losses = [top for top in tops if isinstance(top, _Loss)]
    models = [top for top in tops if not isinstance(top, _Loss)]
    names = _names_of(models)
    several = sum(any(True for _ in model.parameters()) for model in models) > 1
    of_module = {id(module): LOSS for loss in losses for module in loss.modules()}
    of_parameter: dict[int, str] = {}
    owner: dict[int, str] = {}
    for model, name in zip(models, names, strict=True):
        prefix = f"{name}." if several else ""
        for path, module in named_modules(model):
            full = f"{prefix}{path}" if path else name
            of_module.setdefault(id(module), full)
            for key, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in of_parameter:
                    of_parameter[id(parameter)] = (
                        f"{prefix}{path}.{key}" if path else f"{prefix}{key}"
                    )
                    owner[id(parameter)] = full
    _find_replicas(roots, inner, of_module)
    for outermost, root in zip(roots, inner, strict=True):
        wrapper = outermost
        while wrapper is not root:
            of_module[id(wrapper)] = of_module[id(root)]
            wrapper = _wrapped(wrapper)
    return Paths(of_module, of_parameter, owner, models)


def _is_replica(module: Any) -> bool:
    return bool(getattr(module, "_is_replica", False))


def _find_replicas(roots: list[Any], inner: list[Any], of_module: dict[int, str]) -> None:
    """Give the copies of a model that DataParallel makes for every call the paths of the model."""
    originals = [
        part
        for root, part in zip(roots, inner, strict=True)
        if type(root).__name__ == "DataParallel"
    ]
    for replica in (root for root in inner if _is_replica(root)):
        for original in originals:
            if type(original) is type(replica):
                paths = dict(named_modules(original))
                for path, module in named_modules(replica):
                    if path in paths and id(paths[path]) in of_module:
                        of_module.setdefault(id(module), of_module[id(paths[path])])


def unwrap(module: Any) -> Any:
    """Return the module inside DistributedDataParallel, torch.compile and their like."""
    while (child := _wrapped(module)) is not None:
        module = child
    return module


def named_modules(
    module: Any, path: str = "", seen: set[int] | None = None
) -> list[tuple[str, Any]]:
    """Return (path, module) for a module and all below it, wrappers' names left out of the paths.

    Unlike `named_modules()` of torch, which names a wrapper and what it wraps, both have one path.
    """
    seen = set() if seen is None else seen
    if id(module) in seen:
        return []
    seen.add(id(module))
    found = [(path, module)]
    wrapped = _wrapped(module)
    for name, child in module.named_children():
        below = path if child is wrapped else f"{path}.{name}" if path else name
        found += named_modules(child, below, seen)
    return found


def _wrapped(module: Any) -> Any:
    children = dict(module.named_children())
    for name in WRAPPED:
        if name in children:
            return children[name]
    if type(module).__name__ in WRAPPERS and type(module).__module__.startswith("torch."):
        return children.get("module")
    return None


def _names_of(models: list[Any]) -> list[str]:
    """Return the models' class names; several of one class are told apart by a number."""
    given = [_class_of(model).__name__ for model in models]
    names = []
    for index, name in enumerate(given):
        earlier = given[:index].count(name)
        names.append(f"{name}_{earlier + 1}" if earlier else name)
    return names


def _class_of(model: Any) -> type:
    """Return a model's class; what `fully_shard` puts in its place derives from it."""
    for base in type(model).__mro__:
        if "FSDPModule" not in [each.__name__ for each in base.__mro__]:
            return base
    return type(model)
