"""What a tool answers: the largest parts of what `--json` prints, in the schema of its record."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from daydream.report.format import printable, shortened

RECORDS = {
    "info": "daydream.report.info.Info",
    "explain": "daydream.predict.explain.Explanation",
    "rank": "daydream.predict.rank.Ranking",
    "whatif": "daydream.predict.prediction.Prediction",
    "memory": "daydream.memory.result.MemoryReport",
    "compare": "daydream.predict.compare.Difference",
    "confirm": "daydream.predict.confirm.Confirmation",
}
ADDED = {
    "cut": {
        "type": "object",
        "description": "Lists of which only the first are here, and how long each is.",
    },
    "falsified_by": {"type": "string", "description": "What would prove the answer wrong."},
}
MOST, MOST_WITHIN = 5, 1  # elements of a list, of a list within a list
WHOLE = {"command": 100}  # its words
LONGEST = 160  # characters of a text; it comes from a trace, whoever wrote that
LONGER = dict.fromkeys(("notes", "verdict"), 400)


def schema(tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's answer: that of the record which the command encodes."""
    module, _, name = RECORDS[tool].rpartition(".")
    found = schema_of(getattr(import_module(module), name))
    return {**found, "properties": {**found["properties"], **ADDED}}


def schema_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a record, which is an object by itself and no reference."""
    definitions = msgspec.json.schema(record)["$defs"]
    return {**definitions[record.__name__], "$defs": definitions}


def brief(tool: str, document: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, Any]:
    """Return a command's object with its largest parts: the first of each list, the largest of each table.

    Args:
        tool: which one.
        document: what the command prints.
        most: how many elements of some of its lists; of the others 5, and 1 of a list within a list.
    """
    whole = schema(tool)
    found: dict[str, Any] = {}
    cut = {}
    for name, value in document.items():
        if name in {"schema", "trace"}:
            continue
        limit = most.get(name, MOST)
        if isinstance(value, list) and len(value) > limit:
            cut[name] = len(value)
        of = whole["properties"].get(name, {})
        found[name] = _part(value, of, whole["$defs"], limit, LONGER.get(name, LONGEST))
    return {**found, "cut": cut}


def _part(value: Any, schema: Any, definitions: Any, most: int, longest: int = LONGEST) -> Any:
    for each in schema.get("anyOf", ()):  # null, or what it is if it is known
        schema = schema if each.get("type") == "null" else each
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if isinstance(value, str):
        return shortened(printable(" ".join(value.split())), longest)
    if isinstance(value, list):
        of = schema.get("items", {})
        return [_part(each, of, definitions, MOST_WITHIN, longest) for each in value[:most]]
    if not isinstance(value, dict):
        is_ratio = isinstance(value, float) and schema.get("type") == "number"
        return round(value, 4) if is_ratio else value
    known, rest = schema.get("properties", {}), schema.get("additionalProperties") or {}
    parts = list(value.items())
    if rest.get("type") in {"integer", "number"}:  # amounts by name
        parts = sorted(parts, key=lambda part: (-abs(part[1]), part[0]))[:most]
    return {
        _part(name, {}, {}, 0): _part(
            each, known.get(name, rest), definitions, WHOLE.get(name, most)
        )
        for name, each in parts
    }
