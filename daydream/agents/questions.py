"""The questions that an agent may ask: each becomes the words of a command, below one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from daydream.agents.root import Root
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.transforms.registry import find

NAMES = regex(r"[a-z0-9]+(-[a-z0-9]+)*(\+[a-z0-9]+(-[a-z0-9]+)*)*")
OPTION = regex(r"([a-zA-Z0-9_-]+\.)?[a-zA-Z][a-zA-Z0-9_]*")
Trace: TypeAlias = Annotated[
    str,
    Meta(description="A trace below the root: parquet, profiler JSON, Nsight export, or a folder."),
]
Steps: TypeAlias = Annotated[
    str | None, Meta(description="Steps A to B-1 of each rank alone, as 10:20.")
]
Name: TypeAlias = Annotated[
    str,
    Meta(
        description="An optimization as rank names it, or several joined by +, as amp+fused-adam."
    ),
]
Options: TypeAlias = Annotated[
    dict[str, str | bool | int | float] | None,
    Meta(
        description="Options of the optimization, as {'math_speedup': 2.5}; of several also name.option."
    ),
]
Capacity: TypeAlias = Annotated[
    str | None,
    Meta(description="What each device has, as 24GB; by default what the trace says."),
]


class Questions:
    """The tools: each returns the words of the command that answers it, or raises where it may not be asked.

    Args:
        root: what may be read.
        allow_code: whether scripts (`confirm`) and optimizations by path may run.
    """

    def __init__(self, root: Root, *, allow_code: bool) -> None:
        self.root, self.allow_code = root, allow_code

    def info(self, trace: Trace, steps: Steps = None) -> list[str]:
        """Say what a trace holds and what it is good enough for. Ask this first.

        Falsified by: the replay. Where its error is far from 0, the simulation does not describe this
        program, and no prediction from this trace is worth more than that error.
        """
        return self._trace(trace, steps)

    def explain(
        self, trace: Trace, optimization: Name | None = None, steps: Steps = None
    ) -> list[str]:
        """Say why the step takes its time, and the largest costs it could do without, with the code for each.

        With optimization: of the step after that change, with its options at their defaults.

        Falsified by: the replay, as of info. An avoidable cost is none if, with its code in the script, the
        step lies outside the interval of the change that removes it: confirm the change, or, where `basis`
        is recorded, compare this trace with a new one.
        """
        change = [] if optimization is None else [f"--whatif={self._names(optimization)}"]
        return [*self._trace(trace, steps), *change]

    def rank(
        self,
        trace: Trace,
        by: Literal["time", "memory"] = "time",
        top: Annotated[int, Meta(ge=1, le=50)] = 5,
        capacity: Capacity = None,
        steps: Steps = None,
    ) -> list[str]:
        """Predict every optimization that applies, alone and in pairs, sorted by what it would save.

        Falsified by: the replay, as of info. A change is wrong if, with its code in the script, the step of a
        new recording lies outside its interval: compare with the optimization named, or confirm it.
        """
        del top  # of the answer
        return ["--no-curves", f"--by={by}", *self._trace(trace, steps, capacity)]

    def whatif(
        self,
        trace: Trace,
        optimization: Name,
        options: Options = None,
        capacity: Capacity = None,
        steps: Steps = None,
    ) -> list[str]:
        """Predict what a change would give: the step, its interval, memory, and the code that makes it.

        Falsified by: a recording of the same script on the same machine with the change made, whose step is
        not between predicted_low_ns and predicted_high_ns; compare this trace with the new one. The interval
        is one of 90%: of ten right predictions one lies outside.
        """
        return [
            *self._change("", optimization, options),
            *self._trace(trace, steps, capacity),
        ]

    def memory(self, trace: Trace, capacity: Capacity = None, steps: Steps = None) -> list[str]:
        """Say who holds the peak of memory on each device, and whether it fits; needs recorded memory.

        Falsified by: what the allocator counts over the same steps, torch.cuda.max_memory_allocated() on a
        GPU. It holds no more than the peak, but for what the notes list as not counted.
        """
        return self._trace(trace, steps, capacity)

    def compare(
        self,
        before: Trace,
        after: Trace,
        optimization: Name | None = None,
        options: Options = None,
    ) -> list[str]:
        """Compare the steps of two traces; with optimization, what it predicts from the first.

        Falsified by: with an optimization, a step of `after` outside the interval of `before`. Between two
        recordings, two of the unchanged script that differ as much: compare them first.
        """
        if optimization is None and options:
            raise DaydreamError("options belong to an optimization, and none is named")
        change = [] if optimization is None else self._change("--whatif=", optimization, options)
        return [self.root.file(before), self.root.file(after), *change]

    def confirm(
        self,
        optimization: Name,
        script: Annotated[
            str, Meta(description="A training script below the root, run with torch.")
        ],
        args: Annotated[list[str] | None, Meta(description="The script's own arguments.")] = None,
        options: Options = None,
        rounds: Annotated[int, Meta(ge=3, le=100)] = 5,
        block_steps: Annotated[int, Meta(ge=1, le=1000)] = 5,
    ) -> list[str]:
        """Run a training script, predict a change, make it in that run for real, and compare.

        It takes some 130 steps, and what the script saves meanwhile is not to be kept. Only if the user
        started the server with --allow-code.

        Falsified by: the confirmed figure by `control`, the unchanged step against itself, which a machine at
        rest keeps within 5% of 1; further off, confirm again. The prediction by `inside`.
        """
        if not self.allow_code:
            raise DaydreamError(
                "confirm runs a script, and this server runs none.\n"
                "The user may start it with `daydream mcp --allow-code`."
            )
        words = [
            *self._change("", optimization, options),
            "--stop-after",
            f"--rounds={rounds}",
        ]
        return [
            *words,
            f"--block-steps={block_steps}",
            self.root.file(script),
            *(args or []),
        ]

    def _trace(self, trace: str, steps: str | None, capacity: str | None = None) -> list[str]:
        """Return the words that name a trace below the root, and what is asked of it."""
        given = {"trace": self.root.file(trace), "steps": steps, "capacity": capacity}
        return [f"--{name}={value}" for name, value in given.items() if value is not None]

    def _change(self, flag: str, given: str, options: Mapping[str, Any] | None) -> list[str]:
        """Return what names optimizations with their options, by qualified names, which no output has."""
        names = self._names(given)
        words = [flag + names]
        for name, value in (options or {}).items():
            if not OPTION.fullmatch(name):
                raise DaydreamError(f"{name!r} is no name of an option")
            whole = (name if "." in name else f"{_owner(names, name)}.{name}").replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{whole}" if value else f"--no-{whole}")
            else:
                words.append(f"--{whole}={self.root.value(value)}")
        return words

    def _names(self, given: str) -> str:
        """Return what names optimizations; a file only where code may be run, and below the root."""
        if NAMES.fullmatch(given):
            return given
        if not given.endswith(".py"):
            raise DaydreamError(
                f"{given!r} names no optimization: give names as rank does, joined by +"
            )
        if not self.allow_code:
            raise DaydreamError(
                f"{given} is a program, and this server runs none.\n"
                "The user may start it with `daydream mcp --allow-code`."
            )
        return self.root.file(given)


def _owner(names: str, option: str) -> str:
    """Return which of several optimizations has an option; of one it is that, whether it has it or not."""
    parts = [Path(names).stem] if names.endswith(".py") else names.split("+")
    plain = option.replace("-", "_")
    has = [
        each
        for each in parts
        if len(parts) == 1 or plain in {one.name for one in find(each).options}
    ]
    if len(has) != 1:
        who = f"{' and '.join(has)} have it: say NAME.{option}" if has else "none of them has it"
        raise DaydreamError(f"option {option!r} of {names}: {who}")
    return has[0]
