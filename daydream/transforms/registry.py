"""Optimizations by name: those that ship, a user's own file, and other packages' by entry point.

An optimization is a function `name(graph, *, option=default, ...)` that edits a graph.
It lives in a file of its name: `fused_adam.py` holds `fused_adam` and is the command
`fused-adam`. Its signature is its command line, its docstring its help. The file may say
when it is applied among others (`STAGE`, see `daydream.transforms.stages`), which it
cannot be combined with (`EXCLUDES`, a set of names), the line of a training script that makes the
change (`CODE`), what that line needs (`NEEDS_GPU = True`, `OPTIMIZERS`, a set of classes of
`torch.optim`), that no framework makes the change (`PAPER_ONLY = True`), that it asks about jobs of several
processes only (`OF_JOBS`), what the change does to memory (a function `memory(held, *, option=default, ...)`,
see `daydream.memory`), and which options a ranking gives it (a function `suggested_options(graph)`).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError, GraphError, UnknownOptimizationError
from daydream.lazy import regex
from daydream.text import meant
from daydream.transforms import stages

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from daydream.graph.graph import Graph

ENTRY_POINTS = "daydream.optimizations"
NOTHING = type(None)
ARGUMENT = regex(r"^ {4}(\w+)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)", re.MULTILINE)
Options = Mapping[str, Any]  # values by name
ALIASES = {
    "bf16": "amp",
    "fp16": "amp",
    "mixed-precision": "amp",
    "flash": "flash-attention",
    "sdpa": "flash-attention",
    "torch.compile": "compile",
}
#: By the type of an option, what a value must be, in words and as types.
SORTS: dict[type, tuple[str, Any]] = {
    int: ("a whole number", Integral),
    float: ("a number", Real),
    bool: ("True or False", bool),
    str: ("a text", str),
}


@dataclass(frozen=True)
class Option:
    """One keyword-only parameter of an optimization.

    Attributes:
        name: as the function names it.
        type: what a value on the command line becomes: int, float, bool or str.
        default: its default.
        required: it has none.
        help: what it is, from the `Args:` of the docstring: `name (unit): what it is`.
        unit: its unit, from there.
        choices: texts it may be, of a parameter annotated as a `Literal`.
    """

    name: str
    type: type
    default: Any
    required: bool
    choices: tuple[str, ...] = ()
    help: str = ""
    unit: str = ""

    def checked(self, value: Any) -> Any:
        """Return a value of the option's type.

        Raises:
            GraphError: it is none.
        """
        if value is None and self.default is None and not self.required:
            return None
        sort, kinds = SORTS[self.type]
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.type is not bool):
            raise GraphError(f"{self.name} must be {sort}, not {value!r}")
        if self.type is float and not math.isfinite(value):
            raise GraphError(f"{self.name} must be a finite number, not {value}")
        if self.choices and value not in self.choices:
            raise GraphError(f"{self.name} must be one of {', '.join(self.choices)}, not {value!r}")
        return value

    @property
    def flag(self) -> str:
        """The option as typed on the command line."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Optimization:
    """A named change of the graph.

    Attributes:
        name: `fused-adam`.
        function: edits a graph: `function(graph, **options)`.
        options: its keyword-only parameters.
        help: its docstring, without its `Args:`.
        stage: when it is applied among others (`daydream.transforms.stages`).
        excludes: names that it cannot be combined with.
        apply: makes the change for real in a process that trains: a context manager, called with (model,
            optimizer, **options); None where the file has none.
        code: a line of a training script that makes the change; empty where none does.
        of_jobs: asks about jobs of several processes, and is not ranked for a process by itself.
        needs_gpu: the line of code is for a GPU.
        optimizers: classes of `torch.optim` that the line of code is for; empty where it is for any, or none.
        paper_only: no framework makes the change; it is ranked only if all are asked for.
        suggested_options: the options that a trace suggests: called with the graph; None where the trace does
            not tell them.
        memory: does to allocations what the function does to a graph: `memory(held, **options)`
            (`daydream.memory`); None where the file has none.
        tool: makes the change for real at operators: a `daydream.instrument.Tool`, or what returns one (or
            several), called with those options that it takes; None where the file has none.
    """

    name: str
    function: Callable[..., None]
    options: tuple[Option, ...]
    help: str
    stage: int = stages.OWN
    excludes: frozenset[str] = frozenset()
    apply: Callable[..., AbstractContextManager[Any]] | None = None
    code: str = ""
    of_jobs: bool = False
    needs_gpu: bool = False
    optimizers: frozenset[str] = frozenset()
    paper_only: bool = False
    suggested_options: Callable[[Graph], dict[str, Any] | None] | None = None
    memory: Callable[..., None] | None = None
    tool: Any = None

    @property
    def can_be_made(self) -> bool:
        """Whether `daydream confirm` can make the change: the file has an `apply` or a `tool`."""
        return self.apply is not None or self.tool is not None

    @property
    def summary(self) -> str:
        """First line of the help."""
        return self.help.partition("\n")[0]

    @property
    def own_file(self) -> str | None:
        """The user's own file that it is of; None for one of this package, of another or of a notebook."""
        module = inspect.getmodule(self.function)
        return module.__file__ if module and module.__name__.startswith(stages.OWN_FILE) else None

    def rules_out(self, other: Optimization) -> bool:
        """Tell whether two exclude each other."""
        return other.name in self.excludes or self.name in other.excludes


def names() -> list[str]:
    """Return the names of all optimizations that ship or that installed packages add."""
    return sorted({*_shipped(), *(point.name for point in _entry_points())})


def canonical(name: str) -> str:
    """Return the name of an optimization that was given in capitals or by an alias: `amp` for `BF16`."""
    low = name.strip().lower().replace("_", "-")
    low = ALIASES.get(low, low)
    return low if low in _shipped() else name


def find(name: str) -> Optimization:
    """Return an optimization by name, an alias, or the path of a Python file; capitals do not matter.

    Raises `UnknownOptimizationError` with the nearest name, or `GraphError` if a file
    does not hold an optimization.
    """
    if name.endswith(".py"):
        return _of_module(load_file(name), Path(name).stem.replace("_", "-"))
    name = canonical(name)
    if name in _shipped():
        with loading(name):
            module = importlib.import_module(f"daydream.optimizations.{_shipped()[name]}")
        return _of_module(module, name)
    for point in _entry_points():
        if point.name == name:
            with loading(f"{name}, which is {point.value},"):
                function = point.load()
            return _placed(describe(function, name), inspect.getmodule(function))
    said = meant(name.replace("_", "-"), names(), "`daydream whatif --list` shows those there are.")
    if Path(name).exists():
        said = f"Name a change before the trace, as in amp {name}; a file with your own ends in .py"
    for stem in (name.replace("-", "_"), name):
        if Path(f"{stem}.py").is_file():
            said = f"Did you mean the file './{stem}.py'?"
    raise UnknownOptimizationError(f"unknown optimization {name!r}. {said}")


def load_file(name: str) -> ModuleType:
    """Return a user's own file as a module. Raises `UnknownOptimizationError` if there is none."""
    from daydream.transforms.user_file import own_code

    path = Path(name)
    spec = importlib.util.spec_from_file_location(f"{stages.OWN_FILE}{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UnknownOptimizationError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with loading(name), own_code(name):
        spec.loader.exec_module(module)
    return module


def path_or_name(optimization: Optimization) -> str:
    """Return what `find` finds an optimization by in another process: its name, of a user's file its path."""
    if optimization.name in names() and optimization.own_file is None:
        return optimization.name
    return str(Path(str(inspect.getsourcefile(optimization.function))).resolve())


def loadable() -> tuple[list[Optimization], dict[str, str]]:
    """Return all optimizations, and why others cannot be loaded."""
    found = []
    broken = {}
    for name in names():
        try:
            found.append(find(name))
        except DaydreamError as error:
            broken[name] = " ".join(str(error).split())
    return found, broken


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Say of code that cannot be imported which one it is."""
    try:
        yield
    except Exception as error:  # its file, or another package's, may raise anything
        from daydream.transforms.user_file import OwnFileError

        if isinstance(error, OwnFileError):
            raise
        raise GraphError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


def describe(
    function: Callable[..., None], name: str | None = None, file: str | None = None
) -> Optimization:
    """Return the optimization a function is, its options read from its signature.

    Raises `GraphError` if it is none; if it is of a `file`, none that a command line can ask for.
    """
    name = name or str(getattr(function, "__name__", "custom")).replace("_", "-")
    text, options = options_of(function, file)
    del options[:1]  # the graph
    try:
        inspect.signature(function).bind(None, **{option.name: None for option in options})
    except TypeError as error:
        raise GraphError(
            f"{name} is not an optimization: it cannot be called with a graph: {error}"
        ) from None
    return Optimization(name, function, tuple(options), text)


def options_of(function: Callable[..., Any], file: str | None = None) -> tuple[str, list[Option]]:
    """Return a docstring without its `Args:`, and an option for each parameter but `*args` and `**options`.

    An argument is described as `name (unit): what it is`, or without a unit. Raises `GraphError` if one of a
    `file` cannot be typed on a command line.
    """
    text, _, about = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    helps = {each[1]: each.groups("") for each in ARGUMENT.finditer(about)}
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # they name what is not there
        hints = {}
    options = list[Option]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        # `float | None` is a float, a `Literal` a text out of several.
        hint = hints.get(name, NOTHING)
        of_several = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = [
            kind
            for kind in (typing.get_args(hint) if of_several else [hint])
            if kind is not NOTHING
        ]
        literals = [kind for kind in kinds if typing.get_origin(kind) is typing.Literal]
        if file and options and not all(kind in {*SORTS, Any, *literals} for kind in kinds):
            raise GraphError(
                f"{file}: option {name!r} is a {hint}, which cannot be "
                "typed on a command line. Make it a float, int, bool, str or a Literal of texts, or one of "
                "these or None"
            )
        required = parameter.default is inspect.Parameter.empty
        plain = kinds[0] if kinds and isinstance(kinds[0], type) else type(parameter.default)
        choices = tuple(map(str, typing.get_args(literals[0]))) if literals else ()
        default = None if required else parameter.default
        _, unit, words = helps.get(name, ("", "", ""))
        sort = plain if plain in SORTS else str
        options.append(
            Option(name, sort, default, required, choices, " ".join(words.split()), unit)
        )
    return text, options


@cache  # many questions are about one optimization
def _of_module(module: ModuleType, name: str) -> Optimization:
    """Return the optimization of a file; raise `GraphError` if it is none that a command line can ask for."""
    wanted = name.replace("-", "_")
    function = getattr(module, wanted, None)
    if not callable(function):
        own = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ]
        there = f"it has {', '.join(own)}" if own else "it has no function"
        raise GraphError(
            f"{module.__file__} should define a function {wanted!r}, the optimization; {there}"
        )
    return _placed(describe(function, name, module.__file__), module)


def _placed(optimization: Optimization, module: ModuleType | None) -> Optimization:
    """Return the optimization with what else its file says of it: `STAGE`, `EXCLUDES`, `apply`, ..."""
    said = (
        {**vars(module), **getattr(module, "COMMANDS", {}).get(optimization.name, {})}
        if module
        else {}
    )
    stage = said.get("STAGE", stages.OWN)
    if stage not in stages.TITLES:
        raise GraphError(
            f"STAGE of {optimization.name} is {stage!r}; take one of daydream.transforms.stages"
        )
    parts: dict[str, Any] = {"stage": stage, "tool": said.get("tool")}
    for name in ("OF_JOBS", "NEEDS_GPU", "PAPER_ONLY"):
        parts[name.lower()] = bool(said.get(name))
    for name in ("EXCLUDES", "OPTIMIZERS"):
        value: Any = said.get(name, ())
        if isinstance(value, str) or not all(isinstance(each, str) for each in value):
            raise GraphError(f"{name} of {optimization.name} must be a set of names, not {value!r}")
        parts[name.lower()] = frozenset(value)
    for name in ("apply", "memory", "suggested_options"):
        if callable(function := said.get(name)):
            parts[name] = function
    parts["code"] = code = said.get("CODE", "")
    if not isinstance(code, str):
        raise GraphError(f"CODE of {optimization.name} must be a text, not {code!r}")
    return replace(optimization, **parts)


@cache  # a ranking looks up every name
def _shipped() -> dict[str, str]:
    """Return the optimizations that ship: names, and the files they are in."""
    from daydream.optimizations import OF_SEVERAL
    from daydream.optimizations import __path__ as folders

    files = [path.stem for folder in folders for path in Path(folder).glob("[!_]*.py")]
    return {stem.replace("_", "-"): stem for stem in files} | OF_SEVERAL


def _entry_points() -> list[EntryPoint]:
    """Return the optimizations of other packages; what reads them is loaded only if there are any."""
    files = (file for folder in sys.path for file in Path(folder).glob("*/entry_points.txt"))
    archives = any(Path(place).is_file() for place in sys.path)  # whose files are not looked into
    if not archives and not any(
        ENTRY_POINTS.encode() in file.read_bytes() for file in files if file.is_file()
    ):
        return []
    import importlib.metadata

    return list(importlib.metadata.entry_points(group=ENTRY_POINTS))


def typed(options: Options) -> list[str]:
    """Return options as the words that are typed; those that are None are not."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
            words += [f"--{flag}", text]
    return words
