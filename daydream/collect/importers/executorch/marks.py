"""By what files of ExecuTorch are known, before anything that reads them is loaded."""

from __future__ import annotations

from pathlib import Path

ETDUMP_MAGIC = b"ED00"
ETRECORD = b"ETRECORD_V0"
COLUMN = "event_block_name"  # the first one of Inspector's tables, and theirs alone
FOOTER = 8  # bytes at the end of a parquet file: the size of its schema, and its mark


def is_etdump(head: bytes) -> bool:
    """Return whether a file that begins so is an ETDump, with the size before it or without."""
    return ETDUMP_MAGIC in (head[8:12], head[4:8])


def is_etrecord(head: bytes) -> bool:
    """Return whether a file that begins so is an ETRecord: a ZIP file whose first member is its mark."""
    return head.startswith(b"PK") and ETRECORD in head


def is_inspector_json(head: bytes) -> bool:
    """Return whether a JSON file that begins so is a table of Inspector, in any of the orders of pandas."""
    return head.lstrip()[:1] in (b"[", b"{") and f'"{COLUMN}"'.encode() in head


def is_inspector_parquet(path: Path) -> bool:
    """Return whether a parquet file is a table of Inspector."""
    with path.open("rb") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(max(0, size - FOOTER))
        length = min(int.from_bytes(file.read(4), "little"), size)  # a damaged file may say anything
        file.seek(max(0, size - FOOTER - length))
        if COLUMN.encode() not in file.read(length):  # in a thousandth of the time that parquet needs
            return False
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return COLUMN in parquet.read_schema(path).names
    except (pa.ArrowException, OSError, ValueError):
        return False  # what is damaged is said by who reads it
