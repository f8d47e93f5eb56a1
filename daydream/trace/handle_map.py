"""DebugHandleMap: which operators, layers and phases a compiled piece of code came from.

A fused kernel has one name and several owners. An identifier stands for the piece, and the map leads from
it to its handles; the kernel's time is shared over them. ExecuTorch's debug handles are the model: an
identifier per point of interest, made by whoever compiled it, and logged or found again at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from daydream.errors import HandleError
from daydream.trace.schema import PHASES

FORMAT = "daydream.handles"
VERSION = 1
RULES = ("flop", "bytes", "equal")
LARGEST_IDENTIFIER = 2**63 - 1
LONGEST_TEXT = 4_096
LARGEST_WEIGHT = 1e30
MOST_HANDLES = 2**22

Identifier = int | str


class Handle(Struct, frozen=True, omit_defaults=True):
    """One operator that a compiled piece of code does the work of; an empty text is unknown.

    `operator` is named as the profiler names it (`aten::addmm`), `layer` is a qualified module path
    (`blocks.1.fc2`), `source` a line (`model.py(12): forward`), `phase` one of the phases of a trace.
    `weight` is the share basis in FLOP or bytes, as the map's rule says; 0 is unknown.

    Raises `HandleError` for what none of these can be.

    Example::

        handle = daydream.Handle("aten::addmm", layer="blocks.1.fc2", phase="forward", weight=2.1e6)
        print(handle.layer)

    """

    operator: str
    layer: str = ""
    source: str = ""
    phase: str = ""
    weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("operator", "layer", "source", "phase"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise HandleError(f"the {name} of a handle is {text!r:.60}; a text was needed")
            if len(text) > LONGEST_TEXT or not text.isascii():
                _need_text(name, text)
        if not self.operator:
            raise HandleError(
                "a handle has no operator; name what it computes, such as 'aten::addmm'"
            )
        if self.phase and self.phase not in PHASES:
            raise HandleError(
                f"the phase of a handle is {self.phase!r:.60}; choose {', '.join(PHASES)}, or leave it empty"
            )
        weight = self.weight
        if type(weight) not in (int, float) or not 0 <= weight <= LARGEST_WEIGHT:
            raise HandleError(
                f"the weight of a handle is {weight!r:.60}; FLOP or bytes, 0 or more, were needed"
            )


class DebugHandleMap:
    """Identifiers of compiled pieces, all int or all str, and the handles of each.

    `rule` says how a piece's time is shared over its handles: by "flop" or "bytes", their weights, or
    "equal". A piece with a handle of unknown weight is shared equally.

    Raises `HandleError` if identifiers are of two kinds, an entry is empty, or the rule is unknown.

    Example::

        add = daydream.Handle("aten::add", layer="blocks.0", weight=4096)
        relu = daydream.Handle("aten::relu", layer="blocks.1", weight=8192)
        handles = daydream.DebugHandleMap({"triton_poi_fused_add_relu_0": [add, relu]}, rule="bytes")
        print(handles.shares("triton_poi_fused_add_relu_0"))  # a third, and two thirds

    """

    def __init__(
        self, entries: Mapping[Identifier, Sequence[Handle]], *, rule: str = "equal"
    ) -> None:
        if rule not in RULES:
            raise HandleError(f"unknown rule {rule!r:.60}; choose {', '.join(RULES)}")
        self._entries: dict[Identifier, tuple[Handle, ...]] = {}
        for identifier, handles in entries.items():
            self._entries[check_identifier(identifier, self._entries)] = _checked(
                identifier, handles
            )
        self.rule = rule

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Identifier]:
        return iter(self._entries)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._entries

    def __getitem__(self, identifier: Identifier) -> tuple[Handle, ...]:
        try:
            return self._entries[identifier]
        except KeyError:
            raise HandleError(f"no piece has the identifier {identifier!r:.60}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DebugHandleMap):
            return NotImplemented
        return self.rule == other.rule and list(self._entries.items()) == list(
            other._entries.items()
        )

    __hash__ = None  # type: ignore[assignment]  # equal maps are equal by what they hold

    def __repr__(self) -> str:
        return f"<DebugHandleMap of {len(self):,} identifiers, shared by {self.rule}>"

    @classmethod
    def join(
        cls, maps: Mapping[int, DebugHandleMap | None]
    ) -> tuple[DebugHandleMap | None, dict[int, int]]:
        """Return one map of several ranks' maps, and the place in it of each rank's first identifier.

        Ranks that compiled the same share one map. Else identifiers become texts, `RANK/IDENTIFIER`, and
        maps of different rules share equally. None where no rank has a map.
        """
        given = {rank: handles for rank, handles in maps.items() if handles is not None}
        each = list(given.values())
        if all(one == each[0] for one in each):
            return (each[0] if each else None), dict.fromkeys(maps, 0)
        entries: dict[Identifier, Sequence[Handle]] = {}
        first: dict[int, int] = dict.fromkeys(maps, 0)
        for rank, handles in given.items():
            first[rank] = len(entries)
            entries.update({f"{rank}/{identifier}": handles[identifier] for identifier in handles})
        rules = {one.rule for one in each}
        return cls(entries, rule=rules.pop() if len(rules) == 1 else "equal"), first

    @property
    def identifiers(self) -> list[Identifier]:
        """The identifiers in the order of insertion: what the column `handle` of a trace points into."""
        return list(self._entries)

    def shares(self, identifier: Identifier) -> np.ndarray:
        """Return the part of the time that each handle owns: float64, shape (handles,), adding up to 1."""
        weights = np.array([handle.weight for handle in self[identifier]], np.float64)
        if self.rule == "equal" or not (weights > 0).all():
            weights = np.ones(len(weights))
        shares: np.ndarray = weights / weights.sum()
        return shares

    def to_json(self) -> str:
        """Return the map as JSON; `daydream.handles`, version 1, is described in docs/guides/compiled.md."""
        entries = [
            {"identifier": identifier, "handles": handles}
            for identifier, handles in self._entries.items()
        ]
        document = {"format": FORMAT, "version": VERSION, "rule": self.rule, "entries": entries}
        return msgspec.json.encode(document).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> DebugHandleMap:
        """Return the map that `to_json` wrote, or another compiler in the same format.

        Raises `HandleError` if it is no such map, or of a newer version.
        """
        try:
            head = msgspec.json.decode(text, type=_Head)
            if head.version > VERSION:
                raise HandleError(
                    f"the map of debug handles has version {head.version}; this version of daydream "
                    f"reads up to {VERSION}. Upgrade daydream."
                )
            found = msgspec.json.decode(text, type=_Document)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise HandleError(
                f"this is no map of debug handles: {str(error) or 'nested too deeply'}"
            ) from None
        entries: dict[Identifier, Sequence[Handle]] = {}
        if sum(len(each.handles) for each in found.entries) > MOST_HANDLES:
            raise HandleError(f"a map of debug handles has more than {MOST_HANDLES:,} handles")
        for each in found.entries:
            if each.identifier in entries:
                raise HandleError(
                    f"the identifier {each.identifier!r:.60} stands twice in the map; once was needed"
                )
            entries[each.identifier] = each.handles
        return cls(entries, rule=found.rule)


def check_identifier(identifier: Any, others: Mapping[Identifier, Any]) -> Identifier:
    """Return an identifier that fits the others. Raises `HandleError` if it is none, or of another kind."""
    if type(identifier) not in (int, str) or identifier == "":
        raise HandleError(
            f"an identifier is {identifier!r:.60}; a whole number or a text was needed"
        )
    if isinstance(identifier, str):
        _need_text("identifier", identifier)
    elif not 0 <= identifier <= LARGEST_IDENTIFIER:
        raise HandleError(f"the identifier {identifier} is out of range; 0 to 2^63 - 1 was needed")
    first = next(iter(others), identifier)
    if type(first) is not type(identifier):
        raise HandleError(
            f"the identifier {identifier!r:.60} is of another kind than {first!r:.60}; "
            "use whole numbers or texts throughout one map"
        )
    checked: Identifier = identifier
    return checked


def _checked(identifier: Identifier, handles: Sequence[Handle]) -> tuple[Handle, ...]:
    odd = next((each for each in handles if not isinstance(each, Handle)), None)
    if odd is not None:
        raise HandleError(
            f"identifier {identifier!r:.60} has {odd!r:.60} among its handles; a Handle was needed"
        )
    if not handles:
        raise HandleError(
            f"identifier {identifier!r:.60} has no handles; give one at least, or leave it out"
        )
    return tuple(handles)


def _need_text(name: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise HandleError(
            f"the {name} {text[:40]!r}... has {len(text):,} characters; {LONGEST_TEXT:,} at most"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise HandleError(
            f"the {name} {text[:40]!r} is no text that can be written as UTF-8"
        ) from None


class _Head(msgspec.Struct):
    format: Literal["daydream.handles"]
    version: Annotated[int, msgspec.Meta(ge=1)]


class _Entry(msgspec.Struct):
    identifier: int | str
    handles: tuple[Handle, ...]


class _Document(msgspec.Struct):
    entries: list[_Entry]
    rule: Literal["flop", "bytes", "equal"] = "equal"
