"""The messages of Chakra's schema that are written, as protobuf's classes (extra `chakra`).

The names and field numbers are those of MLCommons' `schema/protobuf/et_def.proto`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from daydream.errors import MissingPackageError

PACKAGE = "ChakraProtoMsg"
UINT32 = 13
UINT64 = 4
INT64 = 3
SINT64 = 18
BOOL = 8
STRING = 9
MESSAGES: dict[
    str, dict[str, tuple[int, int | str]]
] = {  # field -> number, type; an element's if repeated
    "Sint64List": {"values": (1, SINT64)},
    "BoolList": {"values": (1, BOOL)},
    "StringList": {"values": (1, STRING)},
    "AttributeProto": {
        "name": (1, STRING),
        "int64_val": (9, INT64),
        "sint64_list": (18, "Sint64List"),
        "bool_val": (27, BOOL),
        "bool_list": (28, "BoolList"),
        "string_val": (29, STRING),
        "string_list": (30, "StringList"),
    },
    "GlobalMetadata": {"version": (1, STRING), "attr": (2, "AttributeProto")},
    "Node": {
        "id": (1, UINT64),
        "name": (2, STRING),
        "type": (3, UINT32),
        "data_deps": (5, UINT64),
        "start_time_micros": (6, UINT64),
        "duration_micros": (7, UINT64),
        "attr": (10, "AttributeProto"),
    },
}
REPEATED = {"values", "attr", "data_deps"}
VALUES = {
    bool: "bool_val",
    int: "int64_val",
    str: "string_val",
}  # field of a value, of a list by its first
LISTS = {bool: "bool_list", int: "sint64_list", str: "string_list"}


@cache
def message_class(name: str) -> Any:
    """Return the class of a message.

    Raises:
        DaydreamError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingPackageError("protobuf", "chakra") from None
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            added = described.field.add(
                name=field, number=number, label=3 if field in REPEATED else 1
            )
            if isinstance(kind, str):
                added.type = 11
                added.type_name = f".{PACKAGE}.{kind}"
            else:
                added.type = kind
            if message == "AttributeProto" and field != "name":
                added.oneof_index = 0
        if message == "AttributeProto":
            described.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def add_attributes(message: Any, values: dict[str, Any]) -> None:
    """Add attributes to a node or to the metadata: flags, whole numbers, texts, or lists of one of them."""
    for name, value in values.items():
        added = message.attr.add(name=name)
        if isinstance(value, list):
            getattr(added, LISTS[type(value[0])]).values.extend(value)
        else:
            setattr(added, VALUES[type(value)], value)


def one_line(name: str) -> str:
    """Return a text on one line; what is no Unicode (half of a surrogate pair) becomes `?`."""
    return " ".join(name.split()).encode("utf-8", "replace").decode()
