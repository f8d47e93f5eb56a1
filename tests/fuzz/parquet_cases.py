"""Parquet traces: rows, columns, types and metadata that only someone with bad intent would write."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.commands import command
from fuzz.hostile import INTEGERS, STRANGE, Case
from fuzz.kineto_cases import bases, bytes_changed


@cache
def traces() -> list[Any]:
    """Return imported traces."""
    from daydream.collect.importers import import_trace

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(bases()):
            path = Path(folder) / f"{number}.json"
            path.write_bytes(text)
            found.append(import_trace([path]))
        found.append(import_trace([Path(folder) / "2.json", Path(folder) / "2.json"], ranks=[0, 1]))
    found[0].metadata |= collected()
    return found


def collected() -> dict[str, Any]:
    """Return what `daydream collect` adds to a trace."""
    return {
        "world_size": 1, "threads": 4, "versions": {"torch": "2.4"}, "unprofiled_step_ns": [900_000, 910_000],
        "parameters": [{"name": "a.weight", "layer": "a", "shape": [32, 64], "dtype": "float32", "device": "cuda:0",
                        "requires_grad": True, "gradient_bytes": 8192}],
        "optimizers": [{"name": "SGD", "state_bytes": 0, "groups": [
            {"settings": {"lr": 0.1, "momentum": 0}, "tensors": 1, "elements": 2048, "parameters": ["a.weight"]}]}],
        "ddp": [{"cap_bytes": 1 << 20, "buckets": [{"bytes": 8192, "parameters": ["a.weight"]}]}],
        "collected": {"warmup": 5, "steps": 3, "unprofiled": 20, "ran": 40},
        "profiler_cost": {"event_ns": {"forward": 1000, "backward": 900, "optimizer": 800}, "input_ns": 10, "annotation_ns": 100,
                          "module_ns": 50, "inside_ns": 200, "before_share": 0.4, "heads": [["forward", "aten::linear", "aten::addmm", 9, 900.0]],
                          "step_hooks_ns": 500, "memory_ns": 200.0},
        "held_before": {"0": {"allocated_bytes": 1024, "reserved_bytes": 2097152, "segments": [
            {"address": 4096, "total_size": 2097152, "stream": 0, "pool": "small", "is_expandable": False, "private": False,
             "blocks": [[1024, 1000], [2096128, None]]}]}},
        "groups": [{"name": "0", "description": "", "ranks": [0]}],
        "counters": [{"name": "ampere_sgemm_32x32_tn", "flop": 1000, "bytes": 2000}],
    }  # fmt: skip


def written(table: Any) -> bytes:
    """Return a table as a parquet file's bytes."""
    from pyarrow import parquet

    target = io.BytesIO()
    parquet.write_table(table, target)
    return target.getvalue()


def rows(chance: random.Random) -> Case:
    """Values of some rows replaced."""
    import numpy as np

    from daydream.trace.schema import FIELDS
    from daydream.trace.trace import Trace

    trace = chance.choice(traces())
    columns = {name: np.array(values, np.int64) for name, values in trace.columns.items()}
    for _ in range(chance.choice((1, 1, 2, 5))):
        name = chance.choice(list(columns))
        column, count = columns[name], chance.choice((1, 1, 2, len(trace)))
        at = np.array([chance.randrange(len(trace)) for _ in range(count)])
        if chance.random() < 0.4:
            column[at] = [chance.randrange(-2, len(trace) + 2) for _ in range(count)]
        elif chance.random() < 0.5:
            column[at] = chance.choice(INTEGERS)
        else:
            column[at] = column[np.array([chance.randrange(len(trace)) for _ in range(count)])]
    for name, column in columns.items():
        text = FIELDS[name].type == "text"
        wide = np.int32 if text or FIELDS[name].type == "int32" else np.int64
        least = -1 if text else np.iinfo(wide).min
        most = len(trace.text(name)) - 1 if text else np.iinfo(wide).max
        columns[name] = np.clip(column, least, most).astype(wide)
    table = Trace(columns, trace.texts, trace.metadata).to_arrow()
    import pyarrow as pa

    return Case(
        "parquet rows", {"t.parquet": written(pa.Table.from_batches([table]))}, command("t.parquet", chance)
    )


def types(chance: random.Random) -> Case:
    """Columns of other types, doubled, dropped or cut; texts replaced."""
    import pyarrow as pa

    table = pa.Table.from_batches([chance.choice(traces()).to_arrow()])
    for _ in range(chance.choice((1, 1, 2))):
        if not table.num_columns:
            break
        at = chance.randrange(table.num_columns)
        field, rows_ = table.schema.field(at), table.num_rows
        how = chance.randrange(7)
        if how == 0:
            table = table.remove_column(at)
        elif how == 1:
            table = table.append_column(field, table.column(at))
        elif how == 2:
            begin = chance.randrange(rows_ + 1)
            table = table.slice(begin, chance.randrange(rows_ + 1))
        elif how == 3:
            other = chance.choice(["x"] * 3 + [1.5, None, b"b", True, [1], {"a": 1}, 2**63 - 1, -5])
            table = table.set_column(at, field.name, pa.array([other] * rows_))
        elif how == 4:
            table = table.set_column(at, field.name, pa.nulls(rows_, field.type))
        elif how == 5:
            kind = chance.choice(
                (pa.int8(), pa.int16(), pa.uint64(), pa.float64(), pa.string(), pa.large_string(), pa.int64())
            )
            try:
                table = table.set_column(at, field.name, table.column(at).cast(kind))
            except pa.ArrowException:
                continue
        else:
            texts = pa.array(
                [
                    chance.choice(("", "x", "\x1b[31m", "[[1,2]]", "[[-5]]", "1,2,3", "kernel"))
                    for _ in range(rows_)
                ]
            )
            table = table.set_column(at, field.name, texts.dictionary_encode())
    return Case("parquet types", {"t.parquet": written(table)}, command("t.parquet", chance))


def metadata(chance: random.Random) -> Case:
    """Metadata with values replaced, left out or added."""
    import pyarrow as pa

    trace = chance.choice(traces()[:1] * 3 + traces())
    document = copy.deepcopy(trace.metadata)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(document, chance)
    text = json.dumps(document)
    if chance.random() < 0.05:
        text = chance.choice(
            ("", "null", "[]", "[" * 100_000, '{"schema_version": 1e400}', text[: len(text) // 2])
        )
    table = pa.Table.from_batches([trace.to_arrow()]).replace_schema_metadata(
        {b"daydream": text.encode("utf-8", "replace")}
    )
    return Case("parquet metadata", {"t.parquet": written(table)}, command("t.parquet", chance))


def _change(document: Any, chance: random.Random) -> None:
    where = document
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = where[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.85:
            where = inner
            continue
        if chance.random() < 0.15:
            del where[key]
        else:
            where[key] = copy.deepcopy(chance.choice(STRANGE))
        return


def memory(chance: random.Random) -> Case:
    """Memory events with other values, in other columns and types, or their text cut and changed."""
    import pyarrow as pa

    from daydream.trace.memory_events import COLUMNS, MEMORY_KEY

    trace, rows_ = chance.choice(traces()), chance.choice((0, 1, 2, 20))
    sensible = {
        "rank": [0] * rows_, "time_ns": list(range(rows_)), "device": [chance.choice((-1, 0)) for _ in range(rows_)],
        "address": [512 * chance.randrange(4) for _ in range(rows_)],
        "bytes": [512 * chance.choice((-1, 1, 1, 8)) for _ in range(rows_)],
        "allocated_bytes": [4096 + 512 * chance.randrange(9) for _ in range(rows_)],
    }  # fmt: skip
    names = [
        name for name in COLUMNS if chance.random() < 0.97 and (name in sensible or chance.random() < 0.5)
    ]
    columns = []
    for name in names:
        values: list[Any] = list(sensible.get(name, [0] * rows_))
        if rows_ and chance.random() < 0.2:
            values[chance.randrange(rows_)] = chance.choice((*INTEGERS, None))
        kind = chance.choice((*[pa.int64()] * 30, pa.int32(), pa.float64(), pa.string()))
        try:
            columns.append(pa.array(values, pa.int64()).cast(kind))
        except (pa.ArrowException, OverflowError):
            columns.append(pa.array([0] * rows_, pa.int64()))
    if names and chance.random() < 0.1:
        names.append(chance.choice((names[0], "x")))
        columns.append(columns[0])
    inner = written(pa.Table.from_arrays(columns, names=names)) if names else b""
    text = base64.b64encode(bytes_changed(inner, chance) if chance.random() < 0.15 else inner)
    if chance.random() < 0.15:
        text = bytes_changed(text, chance)
    table = pa.Table.from_batches([trace.to_arrow()])
    table = table.replace_schema_metadata({**table.schema.metadata, MEMORY_KEY: text})
    return Case("parquet memory", {"t.parquet": written(table)}, command("t.parquet", chance))


def damaged(chance: random.Random) -> Case:
    """A file with some bytes changed."""
    import pyarrow as pa

    text = written(pa.Table.from_batches([chance.choice(traces()).to_arrow()]))
    return Case("parquet bytes", {"t.parquet": bytes_changed(text, chance)}, command("t.parquet", chance))
