"""The questions that an agent may ask: each is a record, and becomes the words of a command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict

from daydream.agents.root import Root
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.transforms.registry import find

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


class Question(Struct, forbid_unknown_fields=True):
    """What a tool is asked: its fields are the tool's arguments, its docstring what the tool does."""


class Info(Question):
    """Say what a trace holds and what it is good enough for. Ask this first.

    Falsified by: the replay. Where its error is far from 0, the simulation does not describe this
    program, and no prediction from this trace is worth more than that error.
    """

    trace: str
    steps: str | None = None


class Explain(Question):
    """Say why the step takes its time, and the largest costs it could do without, with the code for each.

    With optimization: of the step after that change, with its options at their defaults.

    Falsified by: the replay, as of info. An avoidable cost is none if, with its code in the script, the
    step lies outside the interval of the change that removes it: confirm the change, or, where `basis`
    is recorded, compare this trace with a new one.
    """

    trace: str
    optimization: str | None = None
    steps: str | None = None


class Rank(Question):
    """Predict every optimization that applies, alone and in pairs, sorted by what it would save.

    Falsified by: the replay, as of info. A change is wrong if, with its code in the script, the step of a
    new recording lies outside its interval: compare with the optimization named, or confirm it.
    """

    trace: str
    by: Literal["time", "memory"] = "time"
    top: Annotated[int, Meta(ge=1, le=50)] = 5
    capacity: str | None = None
    steps: str | None = None


class WhatIf(Question):
    """Predict what a change would give: the step, its interval, memory, and the code that makes it.

    Falsified by: a recording of the same script on the same machine with the change made, whose step is
    not between predicted_low_ns and predicted_high_ns; compare this trace with the new one. The interval
    is one of 90%: of ten right predictions one lies outside.
    """

    trace: str
    optimization: str
    options: Options | None = None
    capacity: str | None = None
    steps: str | None = None


class Memory(Question):
    """Say who holds the peak of memory on each device, and whether it fits; needs recorded memory.

    Falsified by: what the allocator counts over the same steps, torch.cuda.max_memory_allocated() on a
    GPU. It holds no more than the peak, but for what the notes list as not counted.
    """

    trace: str
    capacity: str | None = None
    steps: str | None = None


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
    args: list[str] | None = None
    options: Options | None = None
    rounds: Annotated[int, Meta(ge=3, le=100)] = 5
    block_steps: Annotated[int, Meta(ge=1, le=1000)] = 5


TOOLS = {
    each.__name__.lower(): each for each in (Info, Explain, Rank, WhatIf, Memory, Compare, Confirm)
}


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
    spec, options = given.pop("optimization", None), given.pop("options", None) or {}
    change: list[str] = []
    if spec is not None:
        change = _change(spec, options, root, allow_code=allow_code)
        change[0] = CHANGE.get(tool, "") + change[0]
    elif options:
        raise DaydreamError("options belong to an optimization, and none is named")
    flags, last = [*change[1:], *FLAGS.get(tool, [])], list[str]()
    for name, value in given.items():
        if name in LAST:
            last.append(root.file(value))
        elif name == "args":
            last += value or []
        elif name != "top" and value is not None:  # which is of the answer
            text = root.file(value) if name == "trace" else value
            flags.append(f"--{name.replace('_', '-')}={text}")
    return [tool, *change[:1], "--json", *flags, *last]


def _change(spec: str, options: Mapping[str, Any], root: Root, *, allow_code: bool) -> list[str]:
    """Return what names optimizations with their options, by qualified names, which no output has."""
    parts = spec.split("+")
    if not NAMES.fullmatch(spec):  # a file: only where code may be run, and below the root
        if not spec.endswith(".py"):
            raise DaydreamError(
                f"{spec!r} names no optimization: give names as rank does, joined by +"
            )
        if not allow_code:
            raise DaydreamError(PROGRAM.format(spec))
        spec = root.file(spec)
        parts = [Path(spec).stem]
    found = [spec]
    for name, value in options.items():
        if not OPTION.fullmatch(name):
            raise DaydreamError(f"{name!r} is no name of an option")
        whole = (name if "." in name else f"{_owner(parts, name)}.{name}").replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{whole}" if value else f"--no-{whole}")
        else:
            found.append(f"--{whole}={root.value(value)}")
    return found


def _owner(parts: list[str], option: str) -> str:
    """Return which of several optimizations has an option; of one it is that, whether it has it or not."""
    if len(parts) == 1:
        return parts[0]
    has = [each for each in parts if option in {one.name for one in find(each).options}]
    if len(has) != 1:
        who = f"{' and '.join(has)} have it: say NAME.{option}" if has else "none of them has it"
        raise DaydreamError(f"option {option!r} of {'+'.join(parts)}: {who}")
    return has[0]
