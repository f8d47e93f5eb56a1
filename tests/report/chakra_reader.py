"""Reads Chakra files with protobuf's own library, and runs them by what they say: the oracle of the export.

The messages and field numbers are those of MLCommons' `schema/protobuf/et_def.proto`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ONE, MANY = 1, 3  # labels
UINT32, UINT64, INT64, SINT64, BOOL, STRING, MESSAGE = 13, 4, 3, 18, 8, 9, 11
PACKAGE = "ChakraProtoMsg"
LISTS = {
    "Int64List": INT64,
    "Uint64List": UINT64,
    "Sint64List": SINT64,
    "BoolList": BOOL,
    "StringList": STRING,
}
SCHEMA: dict[str, list[tuple[str, int, int, int, str]]] = {
    **{name: [("values", 1, kind, MANY, "")] for name, kind in LISTS.items()},
    "AttributeProto": [
        ("name", 1, STRING, ONE, ""), ("doc_string", 2, STRING, ONE, ""), ("int64_val", 9, INT64, ONE, ""),
        ("int64_list", 10, MESSAGE, ONE, "Int64List"), ("uint64_val", 13, UINT64, ONE, ""),
        ("uint64_list", 14, MESSAGE, ONE, "Uint64List"), ("sint64_list", 18, MESSAGE, ONE, "Sint64List"),
        ("bool_val", 27, BOOL, ONE, ""), ("bool_list", 28, MESSAGE, ONE, "BoolList"),
        ("string_val", 29, STRING, ONE, ""), ("string_list", 30, MESSAGE, ONE, "StringList"),
    ],
    "GlobalMetadata": [("version", 1, STRING, ONE, ""), ("attr", 2, MESSAGE, MANY, "AttributeProto")],
    "Node": [
        ("id", 1, UINT64, ONE, ""), ("name", 2, STRING, ONE, ""), ("type", 3, UINT32, ONE, ""),
        ("ctrl_deps", 4, UINT64, MANY, ""), ("data_deps", 5, UINT64, MANY, ""),
        ("start_time_micros", 6, UINT64, ONE, ""), ("duration_micros", 7, UINT64, ONE, ""),
        ("attr", 10, MESSAGE, MANY, "AttributeProto"),
    ],
}  # fmt: skip


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, number, kind, label, inner in fields:
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if inner:
                added.type_name = f".{PACKAGE}.{inner}"
            if name == "AttributeProto" and number > 2:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in SCHEMA
    }


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the metadata and the nodes of a file; attributes stand beside the fields."""
    classes = _classes()
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        message = classes["Node" if messages else "GlobalMetadata"]()
        message.ParseFromString(data[at : at + size])
        assert message.SerializeToString() == data[at : at + size]  # nothing that the schema does not have
        messages.append(message)
        at += size
    assert at == len(data)
    return _plain(messages[0]), [_plain(message) for message in messages[1:]]


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
