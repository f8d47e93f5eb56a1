"""Reads Chakra files with protobuf, and runs them by what they say: the oracle of the export."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

proto = pytest.importorskip("google.protobuf.proto", reason="needs the extra `chakra`")
from daydream.report.chakra import message_class  # noqa: E402


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the metadata and the nodes of a file; attributes stand beside the fields."""
    messages = []
    with path.open("rb") as file:
        kind = message_class("GlobalMetadata")
        while (message := proto.parse_length_prefixed(kind, file)) is not None:
            messages.append(_plain(message))
            kind = message_class("Node")
    return messages[0], messages[1:]


def _plain(message: Any) -> dict[str, Any]:
    found = {
        field.name: list(value) if field.is_repeated else value
        for field, value in message.ListFields()
        if field.name != "attr"
    }
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        value = getattr(attribute, which)
        assert attribute.name not in found, attribute.name
        found[attribute.name] = list(value.values) if which.endswith("_list") else value
    return found


def run(ranks: list[list[dict[str, Any]]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (start, end) in ns of each (rank, node), by the files alone: data_deps and their attributes."""
    nodes = {(rank, node["id"]): node for rank, given in enumerate(ranks) for node in given}
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, node in nodes.items():
        if "collective_id" in node:
            members[node["collective_id"]].append(key)
    ready: dict[tuple[int, int], int] = {}
    times: dict[tuple[int, int], tuple[int, int]] = {}
    waiting = list(nodes)
    while waiting:
        left = []
        for key in waiting:
            node, rank = nodes[key], key[0]
            after = [(rank, each) for each in node.get("data_deps", [])]
            if key not in ready and all(each in times for each in after):
                latencies = node.get("dep_latency_ns", [0] * len(after))
                starts = node.get("dep_from_start", [False] * len(after))
                came = [
                    times[each][0 if begins else 1] + latency
                    for each, latency, begins in zip(after, latencies, starts, strict=True)
                ]
                ready[key] = max([node.get("release_ns", 0), *came])
            peers = members[node["collective_id"]] if node.get("waits_for_peers") else [key]
            if key in ready and all(each in ready for each in peers):
                begin = max(ready[each] for each in peers)
                times[key] = begin, begin + node["duration_ns"]
            else:
                left.append(key)
        assert len(left) < len(waiting), "the nodes wait for each other"
        waiting = left
    return times
