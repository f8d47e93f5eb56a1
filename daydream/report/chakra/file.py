"""Writing Chakra execution traces: `job.et` becomes `job.0.et`, `job.1.et`, ..., and `job.groups.json`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from daydream.files.atomic import refuse_to_replace, write_whole
from daydream.report.chakra.nodes import Nodes, messages, nodes_of
from daydream.report.chakra.schema import add_attributes, message_class
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.simulate.timeline import Timeline

SUFFIX = ".et"
SCHEMA = "0.0.4"  # the version that Chakra's own converters write


@dataclass(frozen=True)
class Written:
    """The files of a Chakra export, and what they leave out."""

    files: list[Path]
    notes: list[str]


def write_chakra(
    path: str | os.PathLike[str], timeline: Timeline, *, force: bool = False
) -> Written:
    """Write the recorded window of a timeline, one file a rank, each whole or not at all.

    Args:
        path: ends in `.et`; ranks are numbered before that (`job.et` gives `job.0.et`).
        timeline: of a replay, or of a prediction.
        force: replace files that are there.

    Raises:
        OutputError: a file exists and `force` is not given, or cannot be written.
        DaydreamError: protobuf is not installed.

    """
    message_class("Node")  # before a file is begun
    nodes = nodes_of(timeline)
    stem = Path(path).with_suffix("")
    names = {
        rank: stem.with_name(f"{stem.name}.{place}{SUFFIX}")
        for place, rank in enumerate(nodes.ranks)
    }
    groups = stem.with_name(f"{stem.name}.groups.json")
    known = {number: ranks for number, ranks in nodes.groups.items() if ranks}
    files = [*names.values(), *([groups] if known else [])]
    for file in files:
        refuse_to_replace(file, force=force)
    for rank, file in names.items():
        write_whole(file, partial(_fill, nodes=nodes, rank=rank), force=force)
    if known:
        places = {rank: place for place, rank in enumerate(nodes.ranks)}
        table = {str(number): [places[rank] for rank in ranks] for number, ranks in known.items()}
        write_whole(
            groups,
            lambda temporary: Path(temporary).write_text(json.dumps(table)),
            force=force,
        )
    return Written(files, _notes(nodes))


def _fill(temporary: str, *, nodes: Nodes, rank: int) -> None:
    from google.protobuf.proto import serialize_length_prefixed

    timeline = nodes.timeline
    entries = nodes.causes.entries
    head = message_class("GlobalMetadata")(version=SCHEMA)
    span = int(timeline.end_ns[entries].max() - timeline.start_ns.min()) if len(entries) else 0
    add_attributes(head, {"generator": "daydream", "makespan_ns": span})
    with open(temporary, "wb") as file:
        for message in chain([head], messages(nodes, rank)):
            serialize_length_prefixed(message, file)


def _notes(nodes: Nodes) -> list[str]:
    found = []
    if nodes.unsized:
        found.append(f"{counted(nodes.unsized, 'collective')} of unknown size have no comm_size")
    if nodes.unknown:
        found.append(
            f"{counted(nodes.unknown, 'transfer')} (sends, receives, unknown collectives) have no peer in a "
            "trace and are written as computation of their recorded time"
        )
    if nodes.causes.left_out:
        found.append(
            f"{counted(nodes.causes.left_out, 'cause')} between ranks, other than collectives, are left out"
        )
    unknown = [number for number, ranks in nodes.groups.items() if not ranks]
    if unknown:
        found.append(
            f"one rank was recorded: the members of {counted(len(unknown), 'process group')} are not known"
        )
    if len(nodes.ranks) == 1 and nodes.communication:
        found.append("one rank was recorded: copy its file for the other ranks (.1.et, .2.et, ...)")
    return found
