"""Fake worlds: a script runs as one rank of many, whose collectives are recorded and answered at once.

`script` makes the world in the process of the script and puts its collectives into the recording, `process_group`
answers them. How long they take is decided when the trace is replayed (`costs.network.networks`).
"""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any, NoReturn

import numpy as np

NO_GPU = (
    "the script asks for a GPU, and this machine has none: add --emulate NAME, such as --emulate h100, or let it "
    "run on the CPU"
)
NEVER_MADE = (
    "the script never called torch.distributed.init_process_group: it ran as one process of one.\n"
    "Leave --world out, or let it make its process group."
)
TEXTS = ("kind", "name", "shapes", "dtype", "collective", "group")  # columns of texts
NO_RPC = "the script uses torch.distributed.rpc, whose other workers do not exist: leave it out"
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

    why: str | None = None
    unknown: str = ""

    def __init__(self, text: str) -> None:
        super().__init__(f"daydream: {text}")
        if Refused.why is not None:
            Refused.why, self.code = text, 1


def refusal() -> str | None:
    """Return why the script was ended, if it was."""
    return Refused.why


def refuse(text: str) -> NoReturn:
    """End the script with one line."""
    raise Refused(text)


def explain_errors() -> None:
    """Let the command line say, of an error that ends the script, what it means in a world that does not exist."""
    if Refused.why is not None:
        return  # a world and a GPU
    Refused.why, own = "", sys.excepthook
    if rpc := sys.modules.get("torch.distributed.rpc"):  # its agents would wait for each other
        vars(rpc)["init_rpc"] = lambda *_, **__: refuse(NO_RPC)

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


def write(recording: Any, written: dict[int, dict[str, Any]]) -> None:
    """Write values into a `Recording`, by row and column."""
    for column in {name: 0 for values in written.values() for name in values}:
        rows = np.array([row for row, values in written.items() if column in values])
        found = [values[column] for values in written.values() if column in values]
        if column in TEXTS:
            recording.set_texts(column, rows, [text or None for text in found])
        else:
            recording.set_numbers(column, rows, np.array(found, np.int64))


def environment(world: dict[str, Any]) -> dict[str, str]:
    """Return what torchrun would put into the environment of a rank of one large machine."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(world["rank"])),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world["world_size"])),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
