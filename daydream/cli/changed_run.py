"""A script run once, as with `collect`, in which a change is made: for `confirm` and `calibrate --tool`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from daydream.collect.launcher.runner import Collected, Recording
    from daydream.transforms.registry import Optimization


def change_of(chosen: Sequence[Optimization], values: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Return a change as the process of the script is told it: what is made, its options, when."""
    from daydream.transforms.registry import path_or_name

    return {"names": [path_or_name(each) for each in chosen], "options": values, **how}


def run_changed(command: list[str], path: Path, recording: Recording, **how: Any) -> Collected:
    """Run a script, say how it goes and what went wrong; return what was collected.

    Args:
        command: as `command_line` makes it.
        path: where the trace goes.
        recording: what is recorded, with the change.
        **how: as `daydream.collect.launcher.runner.collect` has it.
    """
    from daydream.cli.failures import message
    from daydream.collect.launcher.runner import collect

    done = collect(
        command, path, recording, say=lambda text: click.echo(f"daydream: {text}", err=True), **how
    )
    for problem in done.problems:
        click.echo(message(problem) if done.path is None else f"note: {problem}", err=True)
    return done
