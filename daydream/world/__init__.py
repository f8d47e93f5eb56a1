"""Fake worlds: a script runs as one rank of many, whose collectives are recorded and answered at once.

`script` makes the world in the process of the script, `process_group` answers its collectives, `rows` puts them
into the recording. How long they take is decided when the trace is replayed (`costs.network.networks`).
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

NO_GPU = (
    "the script asks for a GPU, and this machine has none: add --emulate NAME, such as --emulate h100, or let it "
    "run on the CPU"
)
CAUSES = (  # what is in the line that fails or in its error, and what that means here
    (
        r"torch\.cuda\.nccl|_nccl_|libnccl|nccl built",
        "the script calls NCCL past torch.distributed; a fake world answers torch.distributed only",
    ),
    (
        "wait timeout",
        "the script waits for what another rank puts into a store, and there is none: leave it out",
    ),
    (
        "symmetricmemory",
        "the script uses symmetric memory, which a fake world does not have: leave it out",
    ),
    (
        "numpy.. is not supported",
        "the script needs values of tensors, and those of an emulated GPU have none: leave that out",
    ),
    (
        "unsupportedoperator|no fake impl|could not run 'aten::",
        "an operator of the script needs its GPU: give it shapes (torch.library.register_fake), or leave it out",
    ),
    (
        r"device_count\(\)|(requires|with) cuda|dummy base|none is available|with single-device|to be on gpu",
        NO_GPU,
    ),
)


class Refused(SystemExit):
    """Ends a script that needs what does not exist.

    Attributes:
        why: the reason of the last one, where the command line reports it; None where Python prints it.
        unknown: what the script got no value of, in words.
    """

    why: ClassVar[str | None] = None
    unknown: ClassVar[str] = ""

    def __init__(self, text: str) -> None:
        super().__init__(f"daydream: {text}")
        if Refused.why is not None:
            Refused.why, self.code = text, 1


def explain_errors() -> None:
    """Let the command line say, of an error that ends the script, what it means in a world that does not exist."""
    if Refused.why is not None:
        return  # a world and a GPU
    Refused.why, own = "", sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        first = f"{kind.__name__}: {error}".partition("\n")[0][:160]
        failed = " ".join([*traceback.format_tb(trace)[-1:], first]).lower()
        found = [text for words, text in CAUSES if re.search(words, failed)]
        if "daydream.world.emulate" in sys.modules and NO_GPU in found:
            found = []  # it did not move its model there
        if not found:
            own(kind, error, trace)
        why = f"{found[0]} ({first})" if found else f"the script failed: {first}{Refused.unknown}"
        if kind is not KeyboardInterrupt:
            Refused.why = why

    sys.excepthook = hook


# What launches an emulated GPU's kernels: ns of an operator, of the Python of a layer, of a launch; nine of ten
# programs take up to so many times that, or that part of it. `validation/emulation.py` learns both from recordings.
CPU_NS = {"operator": 1_000, "module": 75_000, "launch": 14_500}
CPU_RANGE = 1.8
CPUS = {"slow": CPU_RANGE, "typical": 1.0, "fast": 1 / CPU_RANGE}


def on_other_cpus(*graphs: Graph) -> Iterator[list[Graph]]:
    """Yield an emulated step's graphs with each CPU that may be there as well; nothing of a recorded step."""
    if emulated := graphs[0].recorded.metadata.get("emulated"):
        cpu = emulated["cpu"]
        for other in ("slow", "fast") if cpu == "typical" else ("typical",):
            changed = [graph.copy() for graph in graphs]
            for graph in changed:
                graph.select(kind="cpu").scale(CPUS[other] / CPUS[cpu], gaps=True)
            yield changed


def environment(world_size: int, rank: int) -> dict[str, str]:
    """Return what torchrun would set for a rank of one large machine."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size)),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
