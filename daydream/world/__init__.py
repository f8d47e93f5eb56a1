"""Fake worlds: a script runs as one rank of many, whose collectives are recorded and answered at once.

`script` makes the world in the process of the script, `process_group` answers its collectives, `rows` puts them
into the recording. How long they take is decided when the trace is replayed (`costs.network.networks`).
"""

from __future__ import annotations


def environment(world_size: int, rank: int) -> dict[str, str]:
    """Return what torchrun would set for a rank of one large machine."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
    }
    return {
        **{name: str(number) for name, number in place.items()},
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
