"""Which files are read, and of which format each is: told by content, not by name."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from daydream.collect.importers.executorch.marks import (
    is_etdump,
    is_etrecord,
    is_inspector_json,
    is_inspector_parquet,
)
from daydream.collect.importers.rocprof.marks import is_rocprof_json, is_rocprof_table
from daydream.collect.importers.xplane.marks import is_xspace, profile_of
from daydream.errors import TraceError
from daydream.files.input_files import check_regular

SUFFIXES = (
    ".json",
    ".json.gz",
    ".sqlite",
    ".sqlite.gz",
    ".db",
    ".db.gz",
    ".etdp",
    ".pb",
    ".pb.gz",
    ".csv",
    ".csv.gz",
    ".parquet",
)
TABLES = (".csv", ".csv.gz")
SPACES = (".pb", ".pb.gz")
SQLITE_MAGIC = b"SQLite format 3\x00"
PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
HEAD = 1024  # bytes that tell the format


def format_of(path: Path) -> str:
    """Return the format of a file by its first bytes, or its last.

    It is `kineto`, `nsys`, `rocprof`, `rocprof-csv`, `xplane`, `etdump`, `inspector` or `parquet`.
    """
    head = head_of(path)
    if head[:4] == PARQUET_MAGIC:
        return "inspector" if is_inspector_parquet(path) else "parquet"
    if path.suffix == ".parquet" and head[:1] not in (b"{", b"[", SQLITE_MAGIC[:1]):
        what = "is empty" if not head else "does not begin as one"
        raise TraceError(f"{path} is not a parquet file: it {what}. Import the profiler's file again.")
    if is_etdump(head) or path.suffix == ".etdp":
        return "etdump"
    if is_etrecord(head):
        raise TraceError(
            f"{path} is an ETRecord; import the ETDump of its program with --etrecord {path.name}"
        )
    found = {
        "inspector": is_inspector_json(head), "rocprof": is_rocprof_json(head),
        "nsys": head[:16] == SQLITE_MAGIC, "rocprof-csv": is_rocprof_table(head),
        "xplane": is_xspace(head) or path.name.endswith(SPACES),
    }  # fmt: skip
    return next((name for name, so in found.items() if so), "kineto")


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked. Raises `TraceError` if it cannot be read."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head[:2] == GZIP_MAGIC:
            with gzip.open(path) as packed:
                head = packed.read(HEAD)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path}: the gzip data is cut off or damaged") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from None
    return head


def trace_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that are read of these files and folders. Raises `TraceError` for a folder of none.

    Of a folder these are the profiles that JAX wrote, else its traces; tables of rocprofv3, if there are no
    others. Of a folder that JAX logs to, those of the last profile in it.
    """
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if not path.is_dir():
            files.append(path)
            continue
        folder = profile_of(path)
        children = [child for child in folder.iterdir() if child.name.endswith(SUFFIXES)]
        raw = [child for child in children if child.suffix != ".parquet"]  # not what was imported from them
        spaces = [child for child in raw if child.name.endswith(SPACES)]
        others = [child for child in raw if not child.name.endswith(TABLES)]
        tables = [child for child in raw if child not in others and is_rocprof_table(head_of(child))]
        found = spaces or others or tables or [child for child in children if child.suffix == ".parquet"]
        if not found:
            raise TraceError(f"{path} holds no trace; files ending in {', '.join(SUFFIXES)} were looked for")
        files += sorted(found, key=lambda child: _natural(child.name))
    if not files:
        raise TraceError("no source was given; name a trace file or a folder of them")
    return files


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts rank2 before rank10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
