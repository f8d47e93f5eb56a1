"""Nsight Systems exports: small databases with other values, without some columns, with changed bytes."""

from __future__ import annotations

import gzip
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from fuzz.commands import command
from fuzz.hostile import INTEGERS, Case
from fuzz.kineto_cases import bytes_changed
from nsys_database import allocation, call, copy, kernel, memset, range_, record, sync, write_export

VALUES: tuple[Any, ...] = (
    None,
    "",
    "x",
    "half \ufffd",
    b"\xff\xfe",
    1.5,
    float("inf"),
    "\x1b[31m",
    "[[2, 3]]",
    *INTEGERS,
)


def tables(chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Return a few steps of calls, device work and ranges."""
    found: dict[str, list[Any]] = {
        "RUNTIME": [], "KERNEL": [], "MEMCPY": [], "MEMSET": [], "SYNCHRONIZATION": [], "NVTX_EVENTS": [], "CUDA_EVENT": [],
    }  # fmt: skip
    if chance.random() < 0.4:
        found["CUDA_GPU_MEMORY_USAGE_EVENTS"] = [
            allocation(chance.randrange(20_000), chance.choice((512, 2**21)), address=512 * chance.randrange(4),
                       memoryOperationType=chance.choice((0, 0, 1)), memKind=chance.choice((1, 2, 2, 5)))
            for _ in range(chance.choice((1, 5, 20)))
        ]  # fmt: skip
    for step in range(chance.choice((1, 2, 3))):
        at = step * 10_000
        if chance.random() < 0.8:
            found["NVTX_EVENTS"].append(
                range_(
                    at,
                    at + 9_990,
                    chance.choice(
                        ("step", f"step {step}", "ProfilerStep#1", "aten::mm, seq = 3, sizes = [[2, 3]]")
                    ),
                )
            )
        for number in range(chance.choice((0, 1, 3, 10))):
            ids, begin = 100 * step + number, at + 300 * number
            found["RUNTIME"].append(
                call(
                    begin,
                    begin + 50,
                    ids,
                    chance.choice(
                        (
                            "cudaLaunchKernel_v7000",
                            "cudaMemcpyAsync_v3020",
                            "cudaStreamSynchronize_v3020",
                            "cudaEventRecord_v3020",
                        )
                    ),
                )
            )
            kind = chance.randrange(5)
            if kind <= 1:
                found["KERNEL"].append(kernel(begin + 20, begin + 220, ids))
            elif kind == 2:
                found["MEMCPY"].append(copy(begin + 20, begin + 100, ids, (1, 0, 2)))
            elif kind == 3:
                found["MEMSET"].append(memset(begin + 20, begin + 30, ids))
            else:
                found["SYNCHRONIZATION"].append(sync(begin + 20, begin + 30, ids))
                found["CUDA_EVENT"].append(record(ids, 1, 7))
    return {name: [dict(row) for row in rows] for name, rows in found.items() if rows}


def damaged(chance: random.Random) -> Case:
    """An export with something wrong, or nothing."""
    given = tables(chance)
    for _ in range(chance.choice((0, 1, 2, 5))):
        if given:
            rows = given[chance.choice(list(given))]
            if chance.random() < 0.2:
                column = chance.choice(list(rows[0]))
                for row in rows:
                    row.pop(column, None)
            else:
                row = chance.choice(rows)
                if row:
                    row[chance.choice(list(row))] = chance.choice(VALUES)
    given = {name: rows for name, rows in given.items() if rows and rows[0]}
    if chance.random() < 0.3:
        given["TARGET_INFO_GPU"] = [{"cuDevice": chance.choice(VALUES), "name": chance.choice(VALUES), "totalMemory": chance.choice(VALUES),
                                     "smCount": chance.choice(VALUES), "clockRate": chance.choice(VALUES)}]  # fmt: skip
    if chance.random() < 0.2:
        given["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": chance.choice(VALUES)}]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        try:
            text = write_export(path, given).read_bytes()
        except (sqlite3.Error, OverflowError, KeyError):
            text = write_export(Path(folder) / "u.sqlite", {"KERNEL": [kernel(0, 5, 1)]}).read_bytes()
    if chance.random() < 0.3:
        text = bytes_changed(text, chance)
    name = "t.sqlite"
    if chance.random() < 0.2:
        name, text = "t.sqlite.gz", gzip.compress(text, 1)
    return Case("nsys", {name: text}, command(name, chance))
