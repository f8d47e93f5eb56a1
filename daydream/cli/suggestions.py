"""The largest suggestions for a trace that was just recorded: a ranking in a process of its own.

Neither the trace nor the exit code of `collect` depends on it: what fails, or takes too long, is left out.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daydream.report.format import printable, step_change_text

PATIENCE_S = 8.0  # reading a trace and predicting some fifty changes takes one or two
MOST = 3
TIMES = ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns")
NEEDS_MORE = ("other hardware", "more GPUs")  # no change of the script alone


@dataclass(frozen=True)
class Suggestions:
    """What would shorten the step most, each as `rank --json` has it; or why that is not known."""

    entries: tuple[dict[str, Any], ...] = ()
    missing: str | None = None

    def lines(self, path: Path) -> list[str]:
        """Return what to print: each suggestion, and below it the code that makes the change."""
        again = f"daydream rank {printable(shlex.quote(str(path)))}"
        if self.missing is not None:
            return [f"no suggestions: {self.missing}; run {again}"]
        if not self.entries:
            return [f"no code change is predicted to shorten this step; see why: {again}"]
        lines = ["top suggestions, predicted from this trace:"]
        for each in self.entries:
            step = step_change_text(*(each[key] for key in TIMES))
            lines.append(f"  {printable(each['optimization'])}: {step}")
            lines.append(f"      {printable(each['code'])}")
        return lines


def suggestions(path: Path, *, patience_s: float = PATIENCE_S) -> Suggestions:
    """Return the largest suggestions for a trace; never raises, and takes no longer than the patience."""
    words = ["rank", "--trace", str(path.resolve()), "--json", "--no-curves", "--pairs", "0"]
    # Modules are looked for where this process finds them: not in the current folder, if not there too.
    code = f"import sys; sys.path[:] = {sys.path!r}; from daydream.cli import main; main({words!r})"
    command = [sys.executable, "-c", code]
    how: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "timeout": patience_s,
    }
    try:
        done = subprocess.run(command, check=False, **how)  # noqa: S603 - words of ours and a path
        if not done.returncode:
            return Suggestions(tuple(_largest(json.loads(done.stdout)["changes"])))
        first = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        reason = first.removeprefix("error: ") or f"exit code {done.returncode}"
        return Suggestions(missing=f"ranking failed ({printable(reason)})")
    except subprocess.TimeoutExpired:
        return Suggestions(missing=f"ranking took longer than {patience_s:g} s")
    except KeyboardInterrupt:
        return Suggestions(missing="interrupted")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Suggestions(missing=f"ranking failed ({type(error).__name__})")


def _largest(ranked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first that a line of code makes, of those that the same line makes one."""
    found: dict[str, dict[str, Any]] = {}
    for each in ranked:
        gains = (each["saving_ns"] or 0) > 0
        if gains and each["code"] and each["needs"] not in NEEDS_MORE:
            found.setdefault(each["code"], each)
    return list(found.values())[:MOST]
