"""Element types and shapes of an Ascend's kernels, from `kernel_details.csv` beside `trace_view.json`.

torch_npu writes both into one folder (`ASCEND_PROFILER_OUTPUT`), with the same names and times. Columns are
`Name`, `Start Time(us)`, `Input Shapes` (`"2048,4096;4096,512"`) and `Input Data Types` (`DT_BF16;DT_BF16`,
or `FLOAT16` in older versions), the others differ between versions. Of formats other than `ND` and those of
images, shapes are a device's own layout and are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.lazy import regex

BESIDE = "kernel_details.csv"
NAME, START, SHAPES, TYPES, FORMATS = (
    "name", "start time(us)", "input shapes", "input data types", "input formats",
)  # fmt: skip
LONGEST = 1 << 28  # bytes of a table
PLAIN = ("ND", "NCHW", "NHWC", "NCL", "NCDHW", "NDHWC")
TORCH = {
    "FLOAT": "float32", "FLOAT16": "float16", "BF16": "bfloat16", "BFLOAT16": "bfloat16", "DOUBLE": "float64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool",
}  # fmt: skip
SIZES = regex(r"^\d{1,15}(,\d{1,15})*\Z")


def add_details(recording: Recording, path: Path) -> None:
    """Give kernels the types and shapes that the table beside their file has, and say of how many."""
    table = path.parent / BESIDE
    kernels = np.flatnonzero(recording.is_kind("kernel"))
    try:
        if not len(kernels) or table.stat().st_size > LONGEST:
            return
        text = table.read_text("utf-8-sig", "replace")
    except OSError:
        return
    told = details_of(text)
    if told is None:
        recording.note(f"{BESIDE} next to the trace is not a table of kernels, and was not used.")
        return
    start = recording["start_ns"][kernels].astype(np.int64) + int(recording.metadata["origin_ns"])
    names = recording.texts_of("name", kernels)
    found = [told.get((at, name)) for at, name in zip(start.tolist(), names, strict=True)]
    known = np.array([one is not None for one in found], bool)
    if not known.any():
        recording.note(f"{BESIDE} next to the trace is of another recording, and was not used.")
        return
    rows = kernels[known]
    for column, values in (
        ("dtype", [one[0] for one in found if one is not None]),
        ("shapes", [one[1] for one in found if one is not None]),
    ):
        recording.set_texts(column, rows, values)
    recording.note(
        f"Element types and shapes of {len(rows):,} of {len(kernels):,} kernels are those of {BESIDE} "
        "next to the trace."
    )


def details_of(text: str) -> dict[tuple[int, str | None], tuple[str | None, str | None]] | None:
    """Return type and shapes by start in ns and name; None if the text is not such a table."""
    import csv

    try:
        rows = csv.reader(text.replace("\0", "").splitlines())
        header = [name.strip().lower() for name in next(rows, [])]
        if not {NAME, START, SHAPES, TYPES} <= set(header):
            return None
        places = [header.index(one) for one in (NAME, START, SHAPES, TYPES)]
        formats = header.index(FORMATS) if FORMATS in header else None
        found: dict[tuple[int, str | None], tuple[str | None, str | None]] = {}
        for row in rows:
            if len(row) != len(header):
                continue
            name, start, shapes, types = (row[place].strip() for place in places)
            whole, _, part = start.partition(".")
            digits = whole + part.ljust(3, "0")[:3]
            if digits.isdigit() and digits.isascii() and len(digits) < 20:
                layouts = "" if formats is None else row[formats].strip()
                found[int(digits), name] = (_type(types), _shapes(shapes, layouts))
    except csv.Error:
        return None
    return found


def _type(types: str) -> str | None:
    """Return the type of the first input that is a number with a fraction, else of the first known one."""
    known = [TORCH.get(one.strip().removeprefix("DT_").upper()) for one in types.split(";")]
    first = next((one for one in known if one is not None), None)
    return next((one for one in known if one is not None and "float" in one), first)


def _shapes(shapes: str, formats: str) -> str | None:
    """Return the shapes of the inputs as JSON text; None where one is a layout of the device's own."""
    parts = [part.strip() for part in shapes.strip('"').split(";")]
    plain = all(one.strip().removeprefix("FORMAT_") in PLAIN for one in formats.split(";") if one.strip())
    if not plain or not any(parts) or not all(SIZES.match(part) for part in parts if part):
        return None
    return "[" + ",".join(f"[{part}]" for part in parts) + "]"
