"""How large an optimization may make a graph."""

from __future__ import annotations

from daydream.errors import GraphError

MOST_TASKS = 5_000_000  # more than fifty times a long trace; about 3 GB while it is simulated


def need_room(tasks: int, option: str, value: int) -> None:
    """Refuse a value of an option that would add more tasks than can be simulated.

    Args:
        tasks: how many it would add.
        option: the option: `repeats`.
        value: what was asked.

    Raises:
        GraphError: they are too many; the message names the option.
    """
    if tasks > MOST_TASKS:
        raise GraphError(
            f"{option} {value:,} would add {tasks:,} tasks to this trace; up to {MOST_TASKS:,} can be "
            f"simulated: give a smaller {option}"
        )
