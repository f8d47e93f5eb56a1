"""What an agent may ask, below which folder, and what it is answered.

Each question is a record, and becomes the words of a command. An answer is the largest parts of what that
command's `--json` prints, in the schema of its record. Every name that an agent gives is looked up below one
folder, links resolved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.report.blocks import printable, shortened
from daydream.transforms.compose import option_names
from daydream.transforms.registry import find, typed

SKILL = Path(__file__).with_name("SKILL.md")  # how to go from a trace to a merged change
MOST_FILES = 10_000  # of a folder given as a trace
LONGEST_NAME = 4096  # characters
PIECES = regex(r"[=,;:]")  # what separates names in an option's value
NAMES = regex(r"[a-z0-9]+(-[a-z0-9]+)*(\+[a-z0-9]+(-[a-z0-9]+)*)*")
OPTION = regex(r"([a-zA-Z0-9_-]+\.)?[a-zA-Z][a-zA-Z0-9_]*")
PROGRAM = (
    "{} is a program, and this server runs none.\n"
    "The user may start it with `daydream mcp --allow-code`."
)
FLAGS = {"rank": ["--no-curves"], "confirm": ["--stop-after"]}  # that a tool's command always has
CHANGE = {"explain": "--whatif=", "compare": "--whatif="}  # else the change is the first word
LAST = {"before", "after", "script"}  # files that a command takes by place

ARGUMENTS = {  # what they are; of the others the name tells
    "trace": "A trace below the root: parquet, profiler JSON, Nsight export, or a folder.",
    "steps": "Steps A to B-1 of each rank alone, as 10:20.",
    "optimization": "An optimization as rank names it, or several joined by +, as amp+fused-adam.",
    "options": "Its options, as {'math_speedup': 2.5}; of several also name.option.",
    "capacity": "What each device has, as 24GB; by default what the trace says.",
    "script": "A training script below the root, run with torch.",
    "args": "The script's own arguments.",
}
Options: TypeAlias = dict[str, str | bool | int | float]
RECORDS = {  # of the answers
    "info": "daydream.report.info:Info",
    "explain": "daydream.predict.explain:Explanation",
    "rank": "daydream.predict.rank:Ranking",
    "whatif": "daydream.predict.prediction:Prediction",
    "memory": "daydream.memory.result:MemoryReport",
    "plan": "daydream.plan.search:Plan",
    "compare": "daydream.predict.compare:Difference",
    "blame": "daydream.predict.curves:Blame",
    "confirm": "daydream.predict.confirm:Confirmation",
}
ADDED = {
    "cut": ("object", "Lists of which only the first are here, and how long each is."),
    "falsified_by": ("string", "What would prove the answer wrong."),
}
# Elements of a list, of a list within a list
MOST = 5
MOST_WITHIN = 1
WHOLE = {"command": 100}  # its words
LONGEST = 140  # characters of a text; it comes from a trace, whoever wrote that
LONGER = dict.fromkeys(("notes", "verdict"), 400)


class OutsideRootError(DaydreamError, PermissionError):
    """A name leads out of the root, or is none."""


class Root:
    """A folder, and whether what is asked for lies in it.

    Example::

        root = Root("runs")
        root.file("today/t.parquet")    # the path with no link left in it
        root.file("../secrets.json")    # raises OutsideRootError

    A name is resolved when it is asked for: a file that is exchanged for a link afterwards is not noticed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.folder = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DaydreamError(f"--root {folder}: {reason}") from None
        if not self.folder.is_dir():
            raise DaydreamError(f"--root {folder} is no folder")

    def file(self, given: str) -> str:
        """Return the absolute path of a file or folder below the root, links resolved.

        Raises:
            OutsideRootError: it leads out of the root, by itself or by a link in the folder that it is.
            DaydreamError: there is none, or the folder holds too much to look through.
        """
        path = self._inside(given)
        if not os.path.exists(path):  # noqa: PTH110 - of a name that is too long, too, it is no error
            raise DaydreamError(f"{given}: there is no such file below the root {self.folder}")
        for count, each in enumerate(path.rglob("*") if path.is_dir() else ()):
            if count == MOST_FILES:
                raise DaydreamError(f"{path} holds over {MOST_FILES:,} files: name one")
            if each.is_symlink():
                self._inside(str(each))
        return str(path)

    def value(self, value: Any) -> Any:
        """Return an option's value, if no part of a text leads out of the root where it is taken for a file.

        Some options take files (a table of times, a cluster), and a value does not tell whether it is one.
        """
        if isinstance(value, str):
            for piece in {value, *PIECES.split(value)}:
                self._inside(piece)
        return value

    def _inside(self, given: str) -> Path:
        if len(given) > LONGEST_NAME or "\0" in given:
            raise OutsideRootError(
                "a name is too long, or holds a zero byte: give one below the root"
            )
        try:
            path = (self.folder / given).resolve()
        except (OSError, RuntimeError, ValueError):
            path = Path("/")
        if path != self.folder and self.folder not in path.parents:
            raise OutsideRootError(
                f"{given} is outside the root {self.folder}.\n"
                "Only what lies below it is read; start `daydream mcp --root DIR` with another one."
            )
        return path


# Questions --------------------------------------------------------------------------------------


class Question(Struct, forbid_unknown_fields=True):
    """What a tool is asked: its fields are the tool's arguments, its docstring what the tool does."""


class OfTrace(Question):
    """A question about a trace."""

    trace: str
    steps: str | None = None


class Info(OfTrace):
    """Say what a trace holds and what it is good enough for. Ask this first.

    Falsified by: the replay. Where its error is far from 0, the simulation does not describe this
    program, and no prediction from this trace is worth more than that error.
    """


class Explain(OfTrace):
    """Say why the step takes its time, and the largest costs it could do without, with the code for each.

    With optimization: of the step after that change, with its options at their defaults.

    Falsified by: the replay, as of info. An avoidable cost is none if, with its code in the script, the
    step lies outside the interval of the change that removes it: confirm the change, or, where `basis`
    is recorded, compare this trace with a new one.
    """

    optimization: str | None = None


class Rank(OfTrace):
    """Predict every optimization that applies, alone and in pairs, sorted by what it would save.

    Falsified by: the replay, as of info. A change is wrong if, with its code in the script, the step of a
    new recording lies outside its interval: compare with the optimization named, or confirm it.
    """

    by: Literal["time", "memory"] = "time"
    top: Annotated[int, Meta(ge=1, le=50)] = 5
    capacity: str | None = None


class WhatIf(OfTrace, kw_only=True):
    """Predict what a change would give: the step, its interval, memory, and the code that makes it.

    Falsified by: a recording of the same script on the same machine with the change made, whose step is
    not between predicted_low_ns and predicted_high_ns; compare this trace with the new one. The interval
    is one of 90%: of ten right predictions one lies outside.
    """

    optimization: str
    options: Options | None = None
    capacity: str | None = None


class Blame(OfTrace):
    """Say what each rank, stage and kind of work costs a job of several ranks, simulated without it.

    Falsified by: the replay, as of info; and a recording in which that rank takes what the others take.
    """


class Memory(OfTrace):
    """Say who holds the peak of memory on each device, and whether it fits; needs recorded memory.

    Falsified by: what the allocator counts over the same steps, torch.cuda.max_memory_allocated() on a
    GPU. It holds no more than the peak, but for what the notes list as not counted.
    """

    capacity: str | None = None


class Plan(Question):
    """Find the strategy (dp, fsdp, pp, checkpointing, ...) of many GPUs that fits and is fastest.

    From the trace of one GPU with recorded memory; batch is the samples of a step of the whole job, by
    default as many for each GPU as now.

    Falsified by: a step of that job outside step_low_ns to step_high_ns, or a peak above memory_bytes. `turn`
    says which part of the step would have to be off, and by which factor, for the second to win.
    """

    trace: str
    gpus: int
    cluster: str
    batch: int | None = None
    capacity: str | None = None


class Compare(Question):
    """Compare the steps of two traces; with optimization, what it predicts from the first.

    Falsified by: with an optimization, a step of `after` outside the interval of `before`. Between two
    recordings, two of the unchanged script that differ as much: compare them first.
    """

    before: str
    after: str
    optimization: str | None = None
    options: Options | None = None


class Confirm(Question):
    """Run a training script, predict a change, make it in that run for real, and compare.

    It takes some 130 steps, and what the script saves meanwhile is not to be kept. Only if the user
    started the server with --allow-code.

    Falsified by: the confirmed figure by `control`, the unchanged step against itself, which a machine at
    rest keeps within 5% of 1; further off, confirm again. The prediction by `inside`.
    """

    optimization: str
    script: str
    args: list[str] = []
    options: Options | None = None
    rounds: Annotated[int, Meta(ge=3, le=100)] = 5
    block_steps: Annotated[int, Meta(ge=1, le=1000)] = 5


QUESTIONS = (Info, Explain, Rank, WhatIf, Blame, Memory, Plan, Compare, Confirm)
TOOLS = {each.__name__.lower(): each for each in QUESTIONS}


def words(tool: str, asked: Question, root: Root, *, allow_code: bool) -> list[str]:
    """Return the command, without `daydream`, that answers a question with JSON.

    Args:
        tool: which one.
        asked: what it is asked.
        root: what may be read.
        allow_code: whether scripts (`confirm`) and optimizations by path may run.

    Raises:
        DaydreamError: it may not be asked, or what it names is not below the root.
    """
    if tool == "confirm" and not allow_code:
        raise DaydreamError(PROGRAM.format("a script"))
    given = asdict(asked)
    spec = given.pop("optimization", None)
    options = given.pop("options", None) or {}
    if options and spec is None:
        raise DaydreamError("options belong to an optimization, and none is named")
    change = [] if spec is None else _change(spec, options, root, allow_code=allow_code)
    found = [tool, *(CHANGE.get(tool, "") + name for name in change[:1]), "--json"]
    found += [*change[1:], *FLAGS.get(tool, [])]
    last: list[str] = []
    for name, value in given.items():
        if name in LAST:
            last.append(root.file(value))
        elif name == "args":
            last += value
        elif name != "top" and value is not None:  # which is of the answer
            text = root.file(value) if name == "trace" else root.value(value)
            found.append(f"--{name.replace('_', '-')}={text}")
    return found + last


def _change(spec: str, options: Options, root: Root, *, allow_code: bool) -> list[str]:
    """Return what names optimizations with their options, by qualified names, which no output has."""
    names = spec.split("+")
    if not NAMES.fullmatch(spec):  # a file: only where code may be run, and below the root
        if not spec.endswith(".py"):
            raise DaydreamError(
                f"{spec!r} names no optimization: give names as rank does, joined by +"
            )
        if not allow_code:
            raise DaydreamError(PROGRAM.format(spec))
        spec = root.file(spec)
        names = [Path(spec).stem]
    found = [spec]
    owners = option_names([*map(find, names)]) if len(names) > 1 else {}
    for name, value in options.items():
        if not OPTION.fullmatch(name):
            raise DaydreamError(f"{name!r} is no name of an option")
        if "." not in name and len(names) > 1 and name not in owners:
            raise DaydreamError(
                f"option {name!r} of {spec}: it is not one of them alone that has it; say NAME.{name}"
            )
        owner = owners[name][0].name if name in owners else names[0]
        flag = name if "." in name else f"{owner}.{name}"
        found += typed({flag: root.value(value)})
    return found


# Answers ----------------------------------------------------------------------------------------


def schema(tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's answer: that of the record which the command encodes."""
    found = schema_of(resolve_name(RECORDS[tool]))
    added = {name: {"type": kind, "description": what} for name, (kind, what) in ADDED.items()}
    return {**found, "properties": {**found["properties"], **added}}


def schema_of(record: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of a record, which is an object by itself and no reference."""
    definitions = msgspec.json.schema(record)["$defs"]
    return {**definitions[record.__name__], "$defs": definitions}


def brief(tool: str, document: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, Any]:
    """Return a command's object with its largest parts: the first of each list, the largest of each table.

    Args:
        tool: which one.
        document: what the command prints.
        most: how many elements of some of its lists; of the others 5, and 1 of a list within a list.
    """
    whole = schema(tool)

    def part(value: Any, of: Any, most: int, longest: int) -> Any:
        for each in of.get("anyOf", ()):  # null, or what it is if it is known
            of = of if each.get("type") == "null" else each
        of = whole["$defs"].get(of.get("$ref", "").rpartition("/")[2], of)
        if isinstance(value, str):
            return shortened(printable(" ".join(value.split())), longest)
        if isinstance(value, list):
            items = of.get("items", {})
            return [part(each, items, MOST_WITHIN, longest) for each in value[:most]]
        if not isinstance(value, dict):
            is_ratio = isinstance(value, float) and of.get("type") == "number"
            return round(value, 4) if is_ratio else value
        known = of.get("properties", {})
        rest = of.get("additionalProperties") or {}
        if rest.get("type") in {"integer", "number"}:  # amounts by name
            largest = sorted(value, key=lambda name: (-abs(value[name]), name))[:most]
            value = {name: value[name] for name in largest}
        return {
            part(name, {}, 0, LONGEST): part(
                each, known.get(name, rest), WHOLE.get(name, most), longest
            )
            for name, each in value.items()
        }

    known = whole["properties"]
    found: dict[str, Any] = {
        name: part(value, known.get(name, {}), most.get(name, MOST), LONGER.get(name, LONGEST))
        for name, value in document.items()
        if name not in {"schema", "trace"}
    }
    lists = {name: len(value) for name, value in document.items() if isinstance(value, list)}
    cut = {name: count for name, count in lists.items() if count > len(found[name])}
    return {**found, "cut": cut}
