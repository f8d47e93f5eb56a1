"""Commands and their options: what commands share, how values are read, how help lists them.

Help has the options of a command under headings: what they ask (`ANSWER`), what is printed and written
(`OUTPUT`), and how the trace is read (`READING`), which `--help-all` shows. A command about a change is made when
the change is named: `daydream whatif amp+fused-adam` has the options of both; their signatures and docstrings tell.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.output import Output
from daydream.cli.source import AUTO, Script, TraceRequest
from daydream.errors import DaydreamError, FileError, GraphError, NotApplicableError, TraceError
from daydream.lazy import regex
from daydream.transforms.registry import ARGUMENT, canonical, find, names, options_of, typed
from daydream.transforms.registry import Option as Described

if TYPE_CHECKING:
    from fractions import Fraction

    from daydream.graph.graph import Graph
    from daydream.transforms.compose import Edit
    from daydream.transforms.registry import Optimization

ANSWER = "Answer"
OUTPUT = "Output"
READING = "Reading the trace"
MEASURED = "measured"  # the default of --contention
MOST = 10_000  # numbers that one list may mean
UNITS = " KMGT"
SIZE = regex(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE | re.ASCII)


class Option(click.Option):
    """An option under a heading of the help; its qualified name (`--amp.math-speedup`) is not shown."""

    def __init__(self, *flags: str, group: str = ANSWER, **how: Any) -> None:
        super().__init__(flags, **how)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option as it is typed, and what it does."""
        return click.Option.get_help_record(self._short(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the option's name for messages."""
        return click.Option.get_error_hint(self._short(), ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what stands behind the help: the default, and whether it is required, but no range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra

    def _short(self) -> click.Option:
        """Return the option as if it had no qualified name, but where it has no other."""
        short = copy.copy(self)
        for kind in ("opts", "secondary_opts"):
            flags = getattr(self, kind)
            setattr(short, kind, [flag for flag in flags if "." not in flag] or flags)
        return short


class Parsed(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2
    """A value that a function makes of the text; what it raises is a usage error."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text means."""
        try:
            return self.parse(value)
        except (DaydreamError, ValueError) as error:
            if error.__cause__ is not None:  # a package is missing: nothing is wrong with the text
                raise
            self.fail(str(error), param, ctx)


def click_option(
    option: Described,
    name: str,
    flags: Sequence[str],
    *,
    group: str = ANSWER,
    type: Any = None,
    default: Any = None,
    required: bool | None = None,
) -> Option:
    """Return the option of the command line for one that a function has.

    Args:
        option: as the function describes it.
        name: what it goes by among the command's parameters.
        flags: how it is typed, without dashes.
        group: its heading.
        type: what reads a value; None for what the option's type says.
        default: the value of one that is not given.
        required: whether it must be given; None for what the option says.
    """
    how: dict[str, Any] = {"type": type or (NUMBER if option.type is float else option.type)}
    shown = option.default
    if option.choices:
        how["type"] = click.Choice(option.choices)
    elif isinstance(default, tuple):
        how = {"multiple": True, "metavar": option.unit, "type": how["type"]}
        shown = None
    elif default is False:
        how = {"is_flag": True}
        shown = None
    elif option.type is bool:  # not given, yes, no
        shown = None if shown is None else f"--{'' if shown else 'no-'}{flags[0]}"
        flags = [f"{each}/--no-{each}" for each in flags]
        how = {}
    else:
        how["metavar"] = option.unit or {int: "N", float: "X", str: "TEXT"}[option.type]
    if default is not None or option.type is bool:
        how["default"] = default
    return Option(
        name,
        *(f"--{each}" if len(each) > 1 else f"-{each}" for each in flags),
        group=group,
        help=option.help + (f" [default: {shown}]" if shown is not None else ""),
        required=option.required if required is None else required,
        **how,
    )


# Values --------------------------------------------------------------------------------------------


def bytes_of(text: str) -> int:
    """Return how many bytes a text means: 1 GB is 1e9 bytes, 1 GiB is 2**30, and `G` is GB.

    Raises:
        ValueError: it is no amount, or none of at least one byte.

    """
    from decimal import Decimal  # for those who type one

    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 24GB or 79.6GiB")
    unit = (1024 if found[3] else 1000) ** UNITS.index((found[2] or " ").upper())
    nbytes = int(Decimal(found[1]) * unit)
    if nbytes < 1:
        raise ValueError(f"{text!r} is less than one byte; a size such as 24GB was needed")
    return nbytes


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression ({error})") from None
    return text


def _steps(text: str) -> str:
    from daydream.trace.recorded_steps import is_range

    if text != AUTO and not is_range(text):
        raise ValueError(f"{text!r} is not 'auto', nor a range of steps such as 10:20")
    return text


def _contention(text: str) -> str:
    from daydream.costs.contention import parsed

    parsed(text)
    return text


def _engine(text: str) -> Any:
    from daydream.parallel import engine_of

    return engine_of(text)


def _cluster(text: str) -> str:
    from daydream.costs.network.cluster_names import find_cluster

    find_cluster(text)
    return text


def _gpu(text: str) -> str:
    from daydream.costs.devices import find_device

    return find_device(text).name


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a valid float") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def _time(text: str) -> float:
    if not (number := _finite(text)) >= 0:
        raise ValueError(f"{text!r} is not a time of 0 or more")
    return number


def _seconds(text: str) -> float:
    if not (number := _time(text)):
        raise ValueError("give a number of seconds above 0.")
    return number


NUMBER = Parsed(_finite)
TIME = Parsed(_time)
BYTES = Parsed(bytes_of)
SECONDS = Parsed(_seconds)
SOME = click.IntRange(1)


def numbers_of(text: str, read: Callable[[str], Fraction]) -> list[Fraction]:
    """Return the numbers of a list such as `1,2,4,...,64`, each part `read` by itself.

    `...` continues as the numbers before it do: by equal steps if three show them, else by factors.

    Raises `ValueError` with what is wrong.
    """
    from fractions import Fraction  # for those who type a list

    found: list[Fraction] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part != "...":
            found.append(read(part))
            continue
        if len(found) < 2 or place + 1 == len(parts):
            raise ValueError(f"{text!r}: '...' needs two numbers before it and one after it")
        last = read(parts[place + 1])
        (before, one) = found[-2:]
        factor = one / before if before else Fraction(0)
        step = Fraction(0)
        even = len(found) > 2 and one - before == before - found[-3]
        if even or factor <= 0 or 1 not in (factor.numerator, factor.denominator):
            factor = Fraction(1)
            step = one - before
        more = [one * factor + step]
        while (more[-1] < last) == (one > before) and more[-1] != last and len(more) < MOST:
            more.append(more[-1] * factor + step)
        if more.pop() != last or one == last:
            shown = str(last) if last.denominator == 1 else f"{float(last):g}"
            raise ValueError(f"the numbers before '...' do not lead to {shown}")
        found += more
    return found


# Shared options ------------------------------------------------------------------------------------


def shared(
    table: str | None = None,
    capacity: int | None = None,
    contention: str = MEASURED,
    engine: Any = "local",
) -> None:
    """Stand for the options that several commands have.

    Args:
        table (FILE): Measured kernel or operator times (CSV, `calibrate`).
        capacity (SIZE): Memory per device, such as 24GB: does the step fit?
        contention (FACTOR): Slowdown of overlap: off, F or F,F.
        engine (ENGINE): Where it runs: local, processes[:N], dask[:N], dask:tcp://HOST:PORT.
    """


SHARED = {each.name: each for each in options_of(shared)[1]}
FLAGS = {
    "as_json": ["json"],
    "output": ["o", "output"],
    "verbose": ["v", "verbose"],
    "module": ["m"],
}
TYPES = {  # what reads values of those, and of the parts of a command line
    "capacity": BYTES,
    "contention": Parsed(_contention),
    "engine": Parsed(_engine),
    "cluster": Parsed(_cluster),
    "emulate": Parsed(_gpu),
    "step_marker": Parsed(_regex),
    "steps": Parsed(_steps),
    "max_unpacked": BYTES,
    "nproc_per_node": SOME,
}
COUNTS = {
    "steps": SOME,
    "warmup": click.IntRange(0),
    "world": SOME,
}
SCRIPT = (
    click.Argument(["target"], metavar="[-m MODULE | SCRIPT]"),
    click.Argument(["args"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGS...]"),
)
TRACE = click.Argument(["traces"], nargs=-1, metavar="TRACE")
NAMED = Option(
    "--trace",
    group=READING,
    multiple=True,
    metavar="TRACE",
    help="TRACE by name: what `import` wrote, or anything it accepts.",
)


CLUSTER = "cluster"  # an option of the trace, and of some optimizations
ALL = "daydream.help_all"
OWN = "option_"  # how values of an optimization's options are named among the command's parameters
ON_A_GPU = "This trace has CPU work only; record a step on a GPU to predict this."
PARTS = {each.name: each for part in (TraceRequest, Output, Script) for each in options_of(part)[1]}
PRINTED = {each.name for each in fields(Output)} - {"verbose"}
READ = [each.name for each in fields(TraceRequest) if each.name != "traces"]
WHOLE = "\nIn Python, daydream.whatif(trace, function) shows the whole traceback."


@dataclass(frozen=True)
class Change:
    """What a command line asks to change.

    Attributes:
        spec: the names, as typed: `amp+fused-adam`.
        optimizations: what they mean.
        typed: the command line, without the name.
        values: the options that were given, by the names that `compose.apply` takes.
    """

    spec: str
    optimizations: Sequence[Optimization]
    typed: Sequence[str] = ()
    values: Mapping[str, Any] | None = None

    @property
    def words(self) -> list[str]:
        """The names and the options, as typed."""
        return [self.spec, *typed(self.values or {})]

    @property
    def edit(self) -> Edit:
        """The edit that makes the change."""
        from daydream.transforms.compose import edit_of

        return edit_of(self.optimizations, self.values)

    def to_make(self, **how: Any) -> dict[str, Any]:
        """Return the change for the process of a script that makes it: what, its options, and `how`."""
        from daydream.transforms.registry import path_or_name

        names = [path_or_name(each) for each in self.optimizations]
        return {"names": names, "options": dict(self.values or {}), **how}

    @contextlib.contextmanager
    def checked(self, graph: Graph | None = None, words: Sequence[str] = ()) -> Iterator[None]:
        """Tell what an optimization raises so that people can correct it.

        What its options cannot be is a usage error. Anything else that fails in a user's own file is told
        with file and line. Below a refusal stands what to do: `words` name the trace of this graph.
        """
        try:
            yield
        except click.ClickException:
            raise
        except Exception as error:
            from daydream.transforms.user_file import mistake_in_own_file

            mistake = mistake_in_own_file(error)
            if mistake is not None:
                more = "" if isinstance(error, DaydreamError) else WHOLE
                raise DaydreamError(mistake.message + more) from error
            if isinstance(error, NotApplicableError) and graph is not None:
                error.args = (
                    "\n".join(
                        [
                            str(error),
                            *self._advice(
                                error.lacks,
                                graph,
                                words,
                            ),
                        ]
                    ),
                )
            # An optimization that finds nothing to change raises a subclass; what is left is a value
            # that it cannot work with, which click cannot know.
            text = str(error)
            if isinstance(error, ArithmeticError):
                text = f"{self.spec} cannot take these values ({error})"
            elif type(error) is not GraphError:
                raise
            raise click.UsageError(text, click.get_current_context()) from error

    def _advice(self, lacks: str | None, graph: Graph, words: Sequence[str]) -> Iterator[str]:
        if lacks == "device" and not len(graph.select(on="gpu")):
            yield ON_A_GPU
        elif lacks == "ranks" and not len(graph.select(kind="collective")):
            from daydream.trace.recorded_steps import shared_already
            from daydream.transforms.compose import check, spelled

            first = "Record"
            together = [find("ddp"), *self.optimizations]
            with contextlib.suppress(DaydreamError):  # they exclude each other
                check(together)
                first = f"Predict several GPUs with it ({spelled(together)}), or record"
            several = f"{first} a job of several ranks: daydream collect --nproc-per-node 2 SCRIPT"
            yield shared_already(graph.recorded) or several
        yield f"daydream rank {shlex.join(words)} lists the changes that do apply."


class Command(click.Command):
    """A command whose function gets a `TraceRequest` and an `Output` in place of their parts.

    Its options stand under headings.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, and the option that shows all of them."""
        return [*super().get_params(ctx), HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings; those that read the trace with `--help-all` alone."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if not isinstance(param, Option) or (param.group == READING and ALL not in ctx.meta):
                continue
            if (record := param.get_help_record(ctx)) is not None:
                groups.setdefault(param.group, []).append(record)
        last = {OUTPUT: 1, READING: 2}
        for group in sorted(groups, key=lambda name: last.get(name, 0)):
            with formatter.section(group):
                formatter.write_dl(groups[group])

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function. What is wrong with a trace, or its graph, is told with the trace's name."""
        given = {name: value for name, value in ctx.params.items() if not name.startswith(OWN)}
        traces: tuple[str, ...] = ()
        kinds: list[tuple[str, Any]] = [("out", Output)] if "as_json" in given else []
        if "target" in given:
            kinds.append(("script", Script))
        if "traces" in given:
            traces = given["traces"] = (*given["traces"], *given.pop("trace", ()))
            kinds.append(("request", TraceRequest))
        if len(traces) > 1 and TRACE in self.params:
            raise click.UsageError(
                f"one trace is needed, {len(traces)} are given: {' '.join(traces)}", ctx
            )
        for name, kind in kinds:
            known = {each.name for each in fields(kind)} & given.keys()
            given[name] = kind(**{each: given.pop(each) for each in known})
        try:
            return ctx.invoke(self.callback or click.echo, **given)
        except (TraceError, GraphError) as error:
            first = str(error).partition("\n")[0]
            if len(traces) == 1 and traces[0] not in first and not isinstance(error, FileError):
                error.args = (f"{traces[0]}: {error}",)
            raise


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


HELP_ALL = Option(
    "--help-all",
    group=OUTPUT,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show this, and the options for reading the trace.",
)


def command(
    *params: click.Parameter | str,
    cls: type[Command] = Command,
    types: Mapping[str, Any] | None = None,
    **how: Any,
) -> Callable[..., Any]:
    r"""Return a decorator that makes a command of a function.

    Its help is the docstring, where a line of `\b` keeps the lines of the paragraph that follows. Each
    parameter is an option, described under `Args:`; but `request` is the trace and how it is read, `out` what
    is printed and written, and `change` the change that is named.

    Args:
        *params: arguments, options, and the names of what `Output` has; what a name means for this
            command may stand under `Args:`, too.
        cls: the class of the command.
        types: what reads values of parameters, where their annotation does not tell.
        **how: for that class.
    """

    def made(function: Callable[..., Any]) -> Command:
        text, options = options_of(function)
        told = {each[1]: each[3] for each in ARGUMENT.finditer(inspect.getdoc(function) or "")}
        found: dict[str, click.Parameter] = {}

        def add(option: Described, group: str) -> None:
            name = option.name
            flags = FLAGS.get(name, [name.rstrip("_").replace("_", "-")])
            kind = {**TYPES, **(types or {})}.get(name)
            help_ = " ".join(told.get(name, option.help).split())
            option = replace(option, help=help_)
            found[name] = click_option(
                option, name, flags, group=group, type=kind, default=option.default
            )

        for param in params:
            if isinstance(param, str):
                add(PARTS[param], OUTPUT if param in PRINTED else ANSWER)
            else:
                found[str(param.name)] = param
        for option in options:
            if option.name == "request":
                traces = found.setdefault("traces", TRACE)
                found |= {} if traces.required else {"trace": NAMED}
                for name in READ:
                    add(PARTS[name], READING)
            elif option.name == "script":
                found |= {str(each.name): each for each in SCRIPT}
                add(PARTS["module"], ANSWER)
                how["context_settings"] = {"allow_interspersed_args": False}
            elif option.name not in {*found, "out", "change"}:
                add(SHARED.get(option.name, option), ANSWER)
        if "out" in inspect.signature(function).parameters:
            add(PARTS["as_json"], OUTPUT)
        name = function.__name__.rstrip("_")
        text = text.replace("\\b", "\b")
        return cls(name, callback=function, help=text, params=[*found.values()], **how)

    return made


class Changes(Command):
    """A command whose first word, or the value of whose `flag`, names a change and so brings its options.

    Its function gets a `Change`; None where nothing is named.
    """

    flag: str | None = None
    optional = False  # whether options that the change requires may be left out
    change: Change | None = None

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the command of the change that is named."""
        ctx = click.Context(self, parent=parent, info_name=info_name)
        spec, rest = self.named(ctx, args)
        if spec is None:
            return super().make_context(info_name, args, parent, **extra)
        made = copy.copy(self)
        with contextlib.redirect_stdout(sys.stderr):
            chosen = self.found(ctx, spec)
        made.change = Change(spec, chosen, tuple(rest))
        theirs = {one.name for each in chosen for one in each.options} & {CLUSTER}  # comes first
        own = [each for each in self.params if each.name not in theirs]
        made.params = [*change_options(chosen, own, optional=self.optional), *own]
        if self.flag is None:
            made.help = "\n\n".join(
                f"{each.name}:\n\n" * bool(chosen[1:]) + each.help for each in chosen
            )
            made.options_metavar = "[OPTIONS]"
            info_name = f"{info_name} {spec}"
        return super(Changes, made).make_context(info_name, rest, parent, **extra)

    def named(self, ctx: click.Context, args: list[str]) -> tuple[str | None, list[str]]:
        """Return what names the change, None if nothing does, and the arguments without it."""
        if self.flag is None and args and not args[0].startswith("-"):
            return args[0], args[1:]
        options = [
            each for each in self.params if isinstance(each, click.Option)
        ]  # help is the parser's
        parser = click.Command(None, params=[*options]).make_parser(ctx)
        parser.ignore_unknown_options = True  # those of the change are not known yet
        values, words, _ = parser.parse_args(list(args))
        if self.flag is not None:
            return values.get(self.flag), args
        words = [word for word in words if not word.startswith("-")]
        spec = next((word for word in words if is_known(word)), next(iter(words), None))
        place = len(args) if spec is None else args.index(spec)
        return spec, [*args[:place], *args[place + 1 :]]

    def found(self, ctx: click.Context, spec: str) -> list[Optimization]:
        """Return the optimizations of `a+b`. What cannot be asked for together is a usage error.

        Raises `DaydreamError` for one that there is not, or whose file cannot be loaded.
        """
        from daydream.transforms.compose import check, parts

        with refused(ctx):
            found = parts(spec)
        chosen = [find(name) for name in found]
        with refused(ctx):
            check(chosen)
        return chosen

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with the change, which has the values that were typed."""
        change = self.change
        if change is not None:
            from daydream.transforms.compose import option_names

            names = option_names(change.optimizations)
            values = ((name, ctx.params[f"{OWN}{index}"]) for index, name in enumerate(names))
            given = {name: value for name, value in values if value is not None}
            change = replace(change, values=given)
        ctx.params["change"] = change
        return super().invoke(ctx)


@contextlib.contextmanager
def refused(ctx: click.Context | None = None) -> Iterator[None]:
    """Turn a `GraphError` about what was typed into a usage error."""
    try:
        yield
    except GraphError as error:
        raise click.UsageError(str(error), ctx or click.get_current_context()) from None


def is_known(spec: str) -> bool:
    """Return whether a word names changes."""
    known = names()
    return all(canonical(part) in known or part.endswith(".py") for part in spec.split("+"))


def change_options(
    optimizations: Sequence[Optimization], own: Sequence[click.Parameter], *, optional: bool = False
) -> list[click.Parameter]:
    """Return an option for each parameter of some optimizations, also by its qualified name.

    Only that one is there (`--amp.memory-speedup`) where several, or the command itself, have the short one.
    """
    from daydream.transforms.compose import option_names

    taken = {flag for parameter in own for flag in parameter.opts} | {"--help"}
    options: list[click.Parameter] = []
    for index, (name, (optimization, option)) in enumerate(option_names(optimizations).items()):
        short = option.name.replace("_", "-")
        flags = [f"{optimization.name}.{short}"]
        if "." not in name and f"--{short}" not in taken:
            flags.insert(0, short)
        options.append(
            click_option(
                option,
                f"{OWN}{index}",
                flags,
                group=f"Options of {optimization.name}",
                type=TYPES[CLUSTER] if option.name == CLUSTER else None,
                required=option.required and not optional,
            )
        )
    return options
