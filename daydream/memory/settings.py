"""What PyTorch's caching allocator is given: settings, read from PYTORCH_CUDA_ALLOC_CONF; segments; requests.

Names, limits and meaning are those of c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of
PyTorch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from daydream.errors import DaydreamError
from daydream.text import meant

MIB = 1 << 20
LARGE_SEGMENT = 20 * MIB  # requests below LEAST_LARGE are packed in segments of this size
LEAST_LARGE = 10 * MIB
INTERVALS = 16  # of sizes for `roundup_power2_divisions`: 1 MiB, 2 MiB, ... 32 GiB
WITHOUT_EFFECT = frozenset({  # on how much memory of the device is taken
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "pinned_num_register_threads", "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "pinned_free_catch_all",
})  # fmt: skip


class Part(NamedTuple):
    """A block of a segment.

    Attributes:
        size: bytes.
        requested: bytes that the program asked for, None where the block is free.
        id: what the events call it, -1 where it is free.
        pending: whether the program has freed it, and another stream still uses it.
    """

    size: int
    requested: int | None = None
    id: int = -1
    pending: bool = False


class Segment(NamedTuple):
    """Memory that the device gave in one piece, or a range of an expandable segment that has memory.

    Attributes:
        address: where it starts.
        stream: whose requests it serves.
        small: whether it serves requests of up to 1 MiB.
        blocks: the whole of it, in order of address.
        expandable: whether it may grow in place.
        private: the private pool that it belongs to, 0 for none.
    """

    address: int
    stream: int
    small: bool
    blocks: tuple[Part, ...]
    expandable: bool = False
    private: int = 0

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return sum(part.size for part in self.blocks)


ALLOCATE, FREE, DEFER, EMPTY_CACHE = range(4)  # what a request asks for


class Request(NamedTuple):
    """What a program asks of the allocator.

    Attributes:
        what: ALLOCATE; FREE; DEFER: freed, but another stream uses it until FREE; EMPTY_CACHE: return unused
            memory to the device.
        id: any number that names the allocation.
        size: bytes asked for, of ALLOCATE.
        stream: any number that names the stream, of ALLOCATE.
        private: the private pool (of a CUDA graph, say), 0 for none.
        address: where it was recorded; a new segment is placed there if it can be.
        fresh: what the device gave for it when it was recorded, as `Allocator.allocate` has it.
    """

    what: int
    id: int = -1
    size: int = 0
    stream: int = 0
    private: int = 0
    address: int | None = None
    fresh: str = ""


@dataclass(frozen=True)
class Settings:
    """What decides how the allocator lays out memory; the defaults are PyTorch's.

    Attributes:
        expandable_segments: whether segments grow in place.
        max_split_bytes: blocks of this size or more are not split; None: all may be.
        max_non_split_rounding_bytes: by how much such a block may exceed the request that it serves.
        roundup_divisions: for sizes from 1 MiB, 2 MiB, 4 MiB, ... in how many steps the next power of two is
            divided when sizes are rounded up; 0 rounds to 512 bytes.
        garbage_collection_threshold: the share of the capacity above which cached blocks are returned
            before a new segment is made; 0 never does.
        large_segment_bytes: the size of a segment for requests of 1 to 10 MiB.
        memory_fraction: the share of the capacity that the process may use.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = LARGE_SEGMENT
    memory_fraction: float = 1.0

    @property
    def non_split_rounding_bytes(self) -> int:
        """`max_non_split_rounding_bytes`, by default the size of a large segment."""
        given = self.max_non_split_rounding_bytes
        return self.large_segment_bytes if given is None else given


def settings_of(text: str) -> Settings:
    """Return the settings of a text such as `expandable_segments:True,max_split_size_mb:128`.

    What is not named has PyTorch's default. Names that concern pinned memory or locks are accepted and
    change nothing.

    Raises:
        DaydreamError: a name is unknown, or a value cannot be.
    """
    settings = Settings()
    for name, value in _pairs(text):
        if name in WITHOUT_EFFECT:
            continue
        if name not in READERS:
            hint = meant(name, [*READERS, *WITHOUT_EFFECT], f"Choose from {', '.join(READERS)}.")
            raise DaydreamError(f"unknown allocator setting {name!r}. {hint}")
        field, read = READERS[name]
        try:
            found = read(value)
        except ValueError as error:
            raise DaydreamError(f"the allocator setting {name}:{value} is wrong: {error}") from None
        if field:
            settings = replace(settings, **{field: found})
    for name in ("max_non_split_rounding_mb", "max_split_size_mb"):
        given = getattr(settings, READERS[name][0])
        least = settings.large_segment_bytes
        if given is not None and given < least:
            raise DaydreamError(
                f"the allocator setting {name} is wrong: at least {least // MIB}, the size of a large "
                "segment, was needed"
            )
    return settings


def settings_text(settings: Settings) -> str:
    """Return the settings that differ from PyTorch's defaults, in the syntax that `settings_of` reads."""
    usual = Settings()
    told = []
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != getattr(usual, each.name):
            name = next(name for name, (field, _) in READERS.items() if field == each.name)
            told.append(f"{name}:{_text(value, in_mib=name.endswith('_mb'))}")
    return ",".join(told)


def _text(value: Any, *, in_mib: bool) -> str:
    if in_mib:
        return str(value // MIB)
    if isinstance(value, tuple):
        return f"[{','.join(f'{1 << at}:{each}' for at, each in enumerate(value))}]"
    return str(value)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Return names and values; commas within brackets do not separate."""
    for part in re.split(r",(?![^\[]*\])", re.sub(r"\s", "", text)):
        name, colon, value = part.partition(":")
        if not part:
            continue
        if not (name and colon and value):
            raise DaydreamError(
                f"{part!r} is not an allocator setting such as max_split_size_mb:128"
            )
        yield name, value


def _whole(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise ValueError("a whole number was needed")
    return int(value)


def _mib(value: str) -> int:
    return _whole(value) * MIB


def _large_segment(value: str) -> int:
    found = _mib(value)
    if found <= LEAST_LARGE:
        raise ValueError("more than 10 was needed")
    return found


def _truth(value: str) -> bool:
    if value not in {"True", "False"}:
        raise ValueError("True or False was needed")
    return value == "True"


def _share(value: str) -> float:
    found = float(value) if re.fullmatch(r"[0-9]*\.?[0-9]+", value) else 0.0
    if not 0 < found < 1:
        raise ValueError("a number between 0 and 1 was needed")
    return found


def _fraction(value: str) -> float:
    return 1.0 if re.fullmatch(r"1(\.0*)?", value) else _share(value)


def _native(value: str) -> str:
    if value != "native":
        raise ValueError("only the backend native is replayed")
    return value


def _divisions(value: str) -> tuple[int, ...]:
    """Return the divisions of each interval; a list such as `[256:1,512:2,>:4]` names them by MiB."""
    if not value.startswith("["):
        return (_power(value),) * INTERVALS
    if not value.endswith("]"):
        raise ValueError("a closing bracket was needed")
    found = [0] * INTERVALS
    last = None
    for part in value[1:-1].split(","):
        size, _, divisions = part.partition(":")
        steps = 0 if divisions == "0" else _power(divisions)
        if size == ">":  # all intervals after the last one that was named
            start = 0 if last is None else last + 1
            found[start:] = [steps] * (INTERVALS - start)
            continue
        at = min(_power(size).bit_length() - 1, INTERVALS - 1)
        if last is None:
            found[:at] = [steps] * at
        found[at] = steps
        last = at
    return tuple(found)


def _power(value: str) -> int:
    found = _whole(value)
    if found & (found - 1) or not found:
        raise ValueError("a power of two was needed")
    return found


READERS: dict[
    str, tuple[str, Callable[[str], Any]]
] = {  # name -> the field, and how its value is read
    "expandable_segments": ("expandable_segments", _truth),
    "max_split_size_mb": ("max_split_bytes", _mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mib),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "large_segment_size_mb": ("large_segment_bytes", _large_segment),
    "per_process_memory_fraction": ("memory_fraction", _fraction),
    "backend": ("", _native),
}
