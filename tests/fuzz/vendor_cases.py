"""Files of rocprofv3 and of JAX: small ones with other values, with changed bytes, cut off, or mixed."""

from __future__ import annotations

import copy
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from fuzz.commands import command
from fuzz.hostile import STRANGE, Case
from fuzz.kineto_cases import bytes_changed
from rocpd_sample import TABLES as TABLES_OF_ROCPD
from rocpd_sample import write_rocpd
from rocprof_text import AGENTS, CALLS, COPIES, KERNELS_NEW, KERNELS_OLD, process
from xspace import training

TABLES = (KERNELS_OLD, KERNELS_NEW, CALLS, COPIES, AGENTS)
CELLS = ("", "x", "-1", "1e9", "1,2", '"', "99999999999999999999", "nan", "0", "\x00", "Agent 99", "\x1b[31m")


VALUES: tuple[Any, ...] = (None, "", "x", b"\xff", 1.5, -1, 2**62, float("inf"), "\x1b[31m", 0)


def rocprof(chance: random.Random) -> Case:
    """JSON of rocprofv3 with something wrong, or nothing."""
    given: Any = {"rocprofiler-sdk-tool": [copy.deepcopy(process(chance.choice((0, 1, 3))))]}
    for _ in range(chance.choice((0, 1, 2, 5))):
        node, key = given, "rocprofiler-sdk-tool"
        while isinstance(node[key], (dict, list)) and node[key] and chance.random() < 0.8:
            node = node[key]
            key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        node[key] = copy.deepcopy(chance.choice(STRANGE))
    text = json.dumps(given).encode()
    return _case(chance, "rocprof", "t.json", text)


def tables(chance: random.Random) -> Case:
    """One or several CSV tables of a run, with other cells."""
    files = {}
    for number, text in enumerate(chance.sample(TABLES, chance.choice((1, 1, 2, 3)))):
        rows = [line.split(",") for line in text.splitlines()]
        for _ in range(chance.choice((0, 1, 3))):
            row = chance.choice(rows)
            row[chance.randrange(len(row))] = chance.choice(CELLS)
        content = "\n".join(",".join(row) for row in rows).encode()
        if chance.random() < 0.2:
            content = bytes_changed(content, chance)
        files[f"run/{number}.csv"] = content
    return Case("rocprof-csv", files, command("run", chance))


def xplane(chance: random.Random) -> Case:
    """A profile of JAX with changed bytes."""
    text = training(
        chance.choice((1, 2, 4)), vendor=chance.choice(("AMD", "Nvidia")), calls_apart=chance.random() < 0.5
    )
    return _case(chance, "xplane", "t.xplane.pb", text)


def rocpd(chance: random.Random) -> Case:
    """A database of rocprofv3 with other values in a column, and with changed bytes."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for table, (columns, usual) in TABLES_OF_ROCPD.items():
            changed = [list(row) for row in usual]
            if changed and chance.random() < 0.2:
                row = chance.choice(changed)
                row[chance.randrange(len(columns.split(", ")))] = chance.choice(VALUES)
            rows[table] = [tuple(row) for row in changed]
        suffixes = chance.choice((("_a",), ("_a", "_b"), ("",)))
        text = write_rocpd(Path(folder) / "t.db", suffixes, **rows).read_bytes()
    return _case(chance, "rocpd", "t.db", text)


def _case(chance: random.Random, kind: str, name: str, text: bytes) -> Case:
    if chance.random() < 0.6:
        text = bytes_changed(text, chance)
    if chance.random() < 0.2:
        text = text[: chance.randrange(len(text) + 1)]
    if chance.random() < 0.2:
        name, text = f"{name}.gz", gzip.compress(text, 1)
    return Case(kind, {name: text}, command(name, chance))
