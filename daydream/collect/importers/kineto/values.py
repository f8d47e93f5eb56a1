"""Values of Kineto events as arrays: times to nanoseconds, ids to integers, texts to codes.

Kineto's `[memory]` rows (`profile_memory=True`): instants of allocations and frees.

Since 2022 they have an address and the allocator's totals. `Device Type` counts as PyTorch's `DeviceType`:
0 is the CPU, 1 CUDA, 6 HIP, 12 XPU, 20 what registers itself (c10/core/DeviceType.h).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from daydream.collect.derive.device_work import dtype_of_inputs, dtype_of_word
from daydream.collect.derive.recording import GrowingColumns, narrow
from daydream.collect.importers.kineto.events import NOTHING, Args, Event
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents, events_of
from daydream.trace.schema import NO_ID, UNKNOWN, Columns, Document
from daydream.trace.valid import is_amount

LARGEST_US = 9.2e15  # more does not fit 63 bits of nanoseconds
LARGEST_WHOLE_US = int(LARGEST_US)
EXACT_FLOAT_US = 2.0**43  # above this, float microseconds no longer tell nanoseconds apart
LARGEST = 2**63 - 1
LARGEST_ID = 2**40  # ids of flows may be times in ns
DAY_NS = 86_400_000_000_000
NOT_A_TIME = Decimal("NaN")


# What nearly all of them are, without a number that could be written otherwise.
Shapes = list[list[int | list[int]]]
UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)


class NeedsDigitsError(Exception):
    """The start times need more digits than a float holds: read them as text."""


class Codes(dict[Any, int]):
    """Value to code, in order of appearance; what says nothing is unknown."""

    nothing: tuple[Any, ...] = (None, b"", b"null", b'""', b"[]", "")

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(self.nothing, UNKNOWN))

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self) - len(self.nothing)
        return code

    def values_in_order(self, start: int = 0) -> list[Any]:
        """Return the values of codes `start`, `start + 1`, ..."""
        return list(islice(self, len(self.nothing) + start, None))

    def of(self, values: list[Any]) -> np.ndarray:
        """Return the codes of values."""
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))

    def of_json(self, values: list[msgspec.Raw]) -> np.ndarray:
        """Return the codes of undecoded JSON."""
        if values[0] == NOTHING and values.count(NOTHING) == len(values):
            return np.full(len(values), UNKNOWN, np.int8)
        return self.of(list(map(bytes, values)))


class Names(Codes):
    """Event names to codes; a name may be any JSON scalar and may be empty."""

    nothing = ()

    def __missing__(self, value: Any) -> int:
        if type(value) is str:
            return super().__missing__(value)
        return self["" if value is None else str(value)]


class Numbers(dict[Any, int]):
    """Ids that are not plain integers to integers: `stream 7` to 7, `0x1f` to 31, nonsense to unknown."""

    def __init__(self, null: int) -> None:
        super().__init__()
        self.null = null

    def __missing__(self, value: Any) -> int:
        self[value] = number = _number(value, self.null)
        return number

    def of(self, values: list[Any]) -> np.ndarray:
        """Return integers, 32 bits wide if they fit."""
        if self.null == UNKNOWN and values.count(UNKNOWN) == len(values):
            return np.full(len(values), UNKNOWN, np.int32)
        try:
            column = np.array(values, np.int64)
        except (TypeError, ValueError, OverflowError):
            column = np.array([self[value] for value in values], np.int64)
        return narrow(column)


def _number(value: Any, null: int) -> int:
    if isinstance(value, str):
        words = value.split()
        try:
            value = int(words[-1], 16 if words[-1][:2].lower() == "0x" else 10)
        except (ValueError, IndexError):
            return null
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    if value is None:
        return null
    if -LARGEST <= value <= LARGEST:
        return int(value)
    # A negative number printed as unsigned: a thread id keeps its sign, a counter is unknown.
    return int(value) - 2**64 if null == NO_ID and LARGEST < value < 2**64 else null


def start_ns(values: list[Any], *, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return start times in nanoseconds and which are unreadable.

    Raises `NeedsDigitsError` where float microseconds are too coarse; `exact` reads them from their digits.
    """
    if exact:
        return _exact_ns(values)
    try:
        us = np.array(values)
        if us.dtype == np.int64:
            bad = (us > LARGEST_WHOLE_US) | (us < -LARGEST_WHOLE_US)
            return np.where(bad, 0, us) * 1000, bad
        us = us.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return _exact_ns(values)
    bad = ~(np.abs(us) <= LARGEST_US)
    us[bad] = 0.0
    if (np.abs(us) >= EXACT_FLOAT_US).any() and not all(type(value) is int for value in values):
        raise NeedsDigitsError
    # Whole and fraction apart: one float product with 1000 would round a second time.
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64), bad


def duration_ns(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return durations in nanoseconds, 32 bits wide if they fit, and which are unreadable."""
    try:
        us = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        column, bad = _exact_ns(values)
        return narrow(column), bad
    bad = ~(np.abs(us) <= LARGEST_US)
    us[bad] = 0.0
    return narrow(np.rint(us * 1000).astype(np.int64)), bad


def _exact_ns(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    result = np.zeros(len(values), np.int64)
    bad = np.zeros(len(values), bool)
    for row, value in enumerate(values):
        text = value
        if isinstance(value, msgspec.Raw):
            digits = bytes(value)
            whole, _, part = digits.partition(b".")
            # Most are so. Below 9.2e15 they fit 63 bits.
            if (
                whole.isdigit()
                and len(whole) <= 16
                and whole < b"92"
                and len(part) == 3
                and part.isdigit()
            ):
                result[row] = int(digits.replace(b".", b""))
                continue
            text = digits.decode("ascii", "replace").strip('"')
        try:
            us = Decimal(str(text))
        except InvalidOperation:
            us = NOT_A_TIME
        if (
            us.is_finite() and -LARGEST_US <= us <= LARGEST_US
        ):  # abs() would round, and may overflow
            result[row] = int((us * 1000).to_integral_value())
        else:
            bad[row] = True
    return result, bad


def group_of(args: Args) -> bytes:
    """Return a collective's group as JSON: its name, else its ranks."""
    name = bytes(args.group)
    return bytes(args.group_ranks) if name in Codes.nothing else name


def parsed(text: Any) -> Any:
    """Return decoded JSON, None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def plain_text(text: Any) -> str:
    """Return a JSON string's content (anything else as it stands), without what cannot be encoded."""
    value = parsed(text) if isinstance(text, bytes) else text
    value = (
        value
        if isinstance(value, str)
        else ""
        if value is None
        else json.dumps(value, separators=(",", ":"))
    )
    return value.encode("utf-8", "replace").decode()


def compact_json(text: bytes) -> str:
    """Return JSON without blanks."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=Shapes)).decode()
    except UNDECODABLE:
        value = parsed(text)
    return "" if value is None else json.dumps(value, separators=(",", ":"))


def triple(text: bytes) -> str:
    """Return a launch dimension `[x, y, z]` as `x,y,z`, empty if it is none."""
    value = parsed(text)
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(size, int) and size >= 0 for size in value)
    ):
        return ",".join(str(int(size)) for size in value)
    return ""


def outer_first(start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Return the order by start; of rows that begin together the longer one first."""
    order = np.argsort(start, kind="stable")
    times = start[order]
    tied = np.zeros(len(order), bool)
    tied[1:] = times[1:] == times[:-1]
    tied[:-1] |= tied[1:]
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, -duration[rows].astype(np.int64), start[rows]))]
    return order


def in_order(
    growing: GrowingColumns, left_out: Counter[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take the times of rows: their order, outer rows first, and starts and durations in it.

    Rows at absurd times are left out, and counted.
    """
    start = growing.take("start_ns")
    duration = growing.take("duration_ns")
    order = outer_first(start, duration)
    start = start[order]
    if len(start):
        odd = np.abs(start - start[len(start) // 2]) > DAY_NS
        odd |= duration[order] > DAY_NS
        if odd.any():
            left_out["began or lasted more than a day away from the others"] += int(odd.sum())
            order = order[~odd]
            start = start[~odd]
    return order, start, narrow(duration[order])


def element_types(columns: Columns, coded: dict[str, Codes]) -> None:
    """Turn operators' input types and collectives' types into `dtype`."""
    codes = Codes()
    dtype: np.ndarray | None = None
    for name in ("types", "word"):
        if name in columns:
            texts = coded[name].values_in_order()
            if name == "types":
                found = [codes[dtype_of_inputs(parsed(text))] for text in texts]
            else:
                found = [codes[dtype_of_word(plain_text(text))] for text in texts]
            column = np.array([*found, UNKNOWN], np.int8)[columns.pop(name)]
            dtype = column if dtype is None else np.where(column >= 0, column, dtype)
    if dtype is not None:
        columns["dtype"] = dtype
        coded["dtype"] = codes


MEMORY_ROW = "[memory]"
CPU_TYPE = 0
LAST_TYPE = 20  # PrivateUse1
NONE = -(2**62)  # a number that no row has
NO_ARGS = Args()


class MemoryRows:
    """The `[memory]` rows of a file, gathered while it is read; `notes` says what was odd about them."""

    def __init__(self) -> None:
        self._parts: list[Columns] = []
        self.notes: list[str] = []

    def add(self, rows: list[Event], threads: Numbers, *, exact: bool) -> None:
        """Keep some rows."""
        args = [row.args or NO_ARGS for row in rows]
        numbers = Numbers(UNKNOWN)
        signed = Numbers(NONE)
        time, bad = start_ns([row.ts for row in rows], exact=exact)
        self._parts.append({
            "bad": bad,
            "kind": numbers.of([each.device_type for each in args]),
            "device": numbers.of([each.device_id for each in args]),
            "time_ns": time,
            "pid": threads.of([row.pid for row in rows]),
            "tid": threads.of([row.tid for row in rows]),
            "address": numbers.of([each.address for each in args]),
            "bytes": signed.of([each.memory_bytes for each in args]),
            "allocated_bytes": signed.of([each.allocated for each in args]),
            "reserved_bytes": signed.of([each.reserved for each in args]),
        })  # fmt: skip

    def events(self, first_ns: int) -> MemoryEvents | None:
        """Return the rows as a table in order of time, None if there are none; times count from `first_ns`.

        Rows without a time, a device or a number of bytes are left out.
        """
        if not self._parts:
            return None
        parts = self._parts
        self._parts = []
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        del parts
        bad = columns.pop("bad")
        kind = columns.pop("kind")
        columns = {name: column.astype(np.int64) for name, column in columns.items()}
        bad |= (
            (kind < CPU_TYPE) | (kind > LAST_TYPE) | ((kind != CPU_TYPE) & (columns["device"] < 0))
        )
        columns["time_ns"] = np.where(bad, 0, columns["time_ns"] - first_ns)
        columns["device"] = np.where(kind == CPU_TYPE, HOST, columns["device"])
        own = ~self._of_another_kind(kind, bad)
        return events_of(
            {name: column[own] for name, column in columns.items()}, bad[own], self.notes
        )

    def _of_another_kind(self, kind: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Return the rows that are neither the CPU's nor of the kind of device with most rows: bool, (rows,).

        Devices of two kinds have the same numbers, and a process trains on one kind.
        """
        on_device = kind[~bad & (kind != CPU_TYPE)]
        if not len(on_device):
            return np.zeros(len(kind), bool)
        most = int(np.bincount(on_device).argmax())
        other = ~bad & (kind != CPU_TYPE) & (kind != most)
        if found := int(other.sum()):
            were = "was" if found == 1 else "were"
            self.notes.append(
                f"{counted(found, 'row', 'rows')} of memory of a second kind of device {were} left out."
            )
        return other


def small_ids(ids: np.ndarray, most: int = LARGEST_ID) -> np.ndarray:
    """Return ids as they are where all are below `most`, else numbered from 0 in their order; -1 stays.

    By default they may be as large as correlation ids that can be told apart between ranks.
    """
    if not len(ids) or int(ids.max()) < most:
        return ids
    values, number = np.unique(ids, return_inverse=True)
    return np.asarray(number.reshape(-1) - int((values < 0).sum()), np.int64)


DEVICE_FIELDS = {  # theirs -> ours: of Kineto, Nsight Systems, rocprofv3
    "product_name": "name",
    "model_name": "name",
    "name": "name",
    "totalGlobalMem": "memory_bytes",
    "totalMemory": "memory_bytes",
    "computeMajor": "compute_major",
    "computeMinor": "compute_minor",
    "numSms": "multiprocessors",
    "smCount": "multiprocessors",
    "cu_count": "multiprocessors",
    "warpSize": "warp_size",
    "threadsPerWarp": "warp_size",
    "wave_front_size": "warp_size",
    "maxThreadsPerBlock": "threads_per_block",
    "workgroup_max_size": "threads_per_block",
    "maxThreadsPerMultiprocessor": "threads_per_multiprocessor",
    "regsPerBlock": "registers_per_block",
    "maxRegistersPerBlock": "registers_per_block",
    "regsPerMultiprocessor": "registers_per_multiprocessor",
    "maxRegistersPerSm": "registers_per_multiprocessor",
    "sharedMemPerBlock": "shared_bytes_per_block",
    "maxShmemPerBlock": "shared_bytes_per_block",
    "sharedMemPerBlockOptin": "shared_bytes_per_block_optin",
    "maxShmemPerBlockOptin": "shared_bytes_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_bytes_per_multiprocessor",
    "maxSharedMemoryPerMultiProcessor": "shared_bytes_per_multiprocessor",
    "maxShmemPerSm": "shared_bytes_per_multiprocessor",
    "memoryBandwidth": "memory_bytes_per_second",
    "clockRate": "clock_hz",
    "l2CacheSize": "l2_bytes",
}


def device_of(given: Mapping[str, Any], **known: Any) -> Document:
    """Return a device as a trace describes it: what is `known`, and what its file says in `DEVICE_FIELDS`.

    The first name counts, and amounts that are none are left out.
    """
    device: Document = dict(known)
    for theirs, ours in DEVICE_FIELDS.items():
        value = given.get(theirs)
        if ours == "name" and isinstance(value, str):
            device.setdefault(ours, plain_text(value))
        elif ours != "name" and is_amount(value):
            device[ours] = value
    return device
