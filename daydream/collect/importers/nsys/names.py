"""Names of an Nsight Systems export in the words of the other importers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from daydream.lazy import regex

GRAPH = "CUDA graph"
API_VERSION = regex(r"_v\d{4,}$")  # cudaLaunchKernel_v7000; the _v2 of cuMemFree_v2 is part of the name

# The enum tables give these words where they are there; these are the ids of all versions seen.
COPY_KINDS = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
              "HtoD", "DtoH", "DtoD")  # fmt: skip
MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static",
                "Unknown")  # fmt: skip
COPY_KIND = regex(r"([A-Z])TO([A-Z])$")  # CUDA_MEMCPY_KIND_HTOD

# What torch.autograd.profiler.emit_nvtx writes: the operator's name, then `, seq = 12`, `, op_id = 345`,
# `, sizes = [[2, 3]]` and `, input_op_ids = ...`, each only where it applies.
SUFFIX = regex(r", (?:seq|op_id|sizes|input_op_ids) = ")
SEQUENCE = regex(r", seq = (\d{1,18})(?:,|$)")
SIZES = regex(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")


class CopyNames:
    """Names of copies and memsets as Kineto writes them, from the ids of one export's enum tables."""

    def __init__(self, operations: Mapping[int, str], memories: Mapping[int, str]) -> None:
        self.kinds = dict(enumerate(COPY_KINDS))
        for code, word in operations.items():
            ends = COPY_KIND.search(word)
            if ends:
                self.kinds[code] = f"{ends[1]}to{ends[2]}"
        self.memories = dict(enumerate(MEMORY_KINDS)) | dict(memories)

    def copy(self, kind: int, source: int, target: int) -> str:
        """Return `Memcpy HtoD (Pageable -> Device)` and the like."""
        return f"Memcpy {self.kinds.get(kind, 'Unknown')} ({self._memory(source)} -> {self._memory(target)})"

    def memset(self, memory: int) -> str:
        """Return `Memset (Device)` and the like."""
        return f"Memset ({self._memory(memory)})"

    def _memory(self, code: int) -> str:
        return self.memories.get(code, "Unknown")


def call_name(recorded: str) -> str:
    """Return the name of a runtime or driver call without the API version that Nsight appends."""
    return API_VERSION.sub("", recorded)


def parse_range(label: str) -> tuple[str, str, int | None, str | None]:
    """Return kind, name, sequence number and input shapes (JSON) of an NVTX range.

    A range of emit_nvtx is an operator if it has a namespace (`aten::add`) or a sequence
    number; one of `record_function` has neither and is an annotation, as is any other.
    """
    suffix = SUFFIX.search(label)
    if suffix is None:
        return "annotation", label, None, None
    name = label[: suffix.start()]
    rest = label[suffix.start() :]
    sequence = SEQUENCE.match(rest)
    if sequence is None and "::" not in name:
        return "annotation", name, None, None
    return "operator", name, int(sequence[1]) if sequence else None, _compact(SIZES.search(rest))


def _compact(sizes: re.Match[str] | None) -> str | None:
    try:
        return json.dumps(json.loads(sizes[1]), separators=(",", ":")) if sizes else None
    except (ValueError, RecursionError):
        return None
