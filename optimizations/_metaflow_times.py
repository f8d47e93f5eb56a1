"""Times of kernels, operators or layers that a user gives by name, in microseconds."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daydream import FileError
from daydream.transforms import read_text


def read_times(path: str) -> dict[str, float]:
    """Return name -> ns from a CSV file with the columns `name,us`, or a JSON object of name: us.

    Raises `FileError` for a file that is missing, or holds anything else than names and times.
    """
    text = read_text(path, "a table of times")
    pairs = _of_json(path, text) if Path(path).suffix == ".json" else _of_csv(path, text)
    times = {str(name).strip(): _ns(path, str(name), value) for name, value in pairs}
    if not times:
        raise FileError(f"{path} holds no times; give lines of `name,us` or a JSON object of name: us")
    return times


def _of_json(path: str, text: str) -> Iterable[tuple[Any, Any]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileError(f"{path} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise FileError(f"{path} should hold one JSON object of name: us, not a {type(found).__name__}")
    return found.items()


def _of_csv(path: str, text: str) -> Iterable[tuple[Any, Any]]:
    rows = list(csv.DictReader(text.splitlines()))
    if rows and not {"name", "us"} <= rows[0].keys():
        raise FileError(f"{path} has the columns {', '.join(map(str, rows[0]))}; it needs name and us")
    return [(row["name"], row["us"]) for row in rows]


def _ns(path: str, name: str, value: Any) -> float:
    try:
        time = float(value) * 1e3
    except (TypeError, ValueError):
        time = math.nan
    if not (math.isfinite(time) and time >= 0) or not name.strip():
        raise FileError(f"{path}: {name!r} has the time {value!r}; it needs microseconds, 0 or more")
    return time
