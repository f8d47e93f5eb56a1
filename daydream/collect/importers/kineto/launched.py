"""Names of the kernels that calls of a recording launch: ROCm writes them beside the call."""

from __future__ import annotations

from pathlib import Path

import msgspec

from daydream.collect.importers.kineto.blocks import opened

LARGEST = 1 << 30  # bytes of a capture's file whose names are read


class _Args(msgspec.Struct):
    correlation: int = -1
    kernel: str = ""


class _Event(msgspec.Struct):
    args: _Args | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the file's own name


def launched_kernels(path: Path, max_unpacked: int | None = None) -> dict[int, str]:
    """Return correlation -> name of the kernel that the call launches; empty where the file has none."""
    with opened(path, max_unpacked) as (file, _, _):
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        return {}
    try:
        events = msgspec.json.decode(text, type=_Document).traceEvents
    except (msgspec.DecodeError, UnicodeError):
        return {}
    return {event.args.correlation: event.args.kernel for event in events if event.args and event.args.kernel}
