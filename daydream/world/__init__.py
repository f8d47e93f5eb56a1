"""Fake worlds: a script runs as one rank of many, whose collectives are recorded and answered at once.

`script` makes the world in the process of the script, `process_group` answers its collectives, `rows` puts them
into the recording. How long they take is decided when the trace is replayed (`costs.network.networks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

# What launches an emulated GPU's kernels: ns of an operator, of the Python of a layer, of a launch; nine of ten
# programs take up to so many times that, or that part of it. `validation/emulation.py` learns both from recordings.
CPU_NS = {"operator": 1_000, "module": 75_000, "launch": 14_500}
CPU_RANGE = 1.8
CPUS = {"slow": CPU_RANGE, "typical": 1.0, "fast": 1 / CPU_RANGE}


def on_other_cpus(graph: Graph) -> Iterator[Graph]:
    """Yield an emulated step's graph with each CPU that may be there as well; nothing of a recorded step."""
    if emulated := graph.recorded.metadata.get("emulated"):
        cpu = emulated["cpu"]
        for other in ("slow", "fast") if cpu == "typical" else ("typical",):
            changed = graph.copy()
            changed.select(kind="cpu").scale(CPUS[other] / CPUS[cpu], gaps=True)
            yield changed


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
