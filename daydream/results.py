"""What answers are: records, whose fields JSON, Python, notebooks and agents show alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Self

Object = TypeVar("Object")


class Live(Generic[Object]):
    """An attribute of a record that JSON does not hold: what the record was made from, or a default."""

    def __init__(self, *default: Object) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Record, owner: type | None = None) -> Object:
        if self.default:  # what is given stands in the record's own dict
            return self.default[0]
        raise AttributeError(f"{self.name} was not given")

    if TYPE_CHECKING:

        def __set__(self, record: Record, value: Object) -> None: ...


class Record(msgspec.Struct, dict=True, weakref=True):
    """An answer, or a part of one: its fields are the keys of its JSON, units in their names."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON; what is no finite number is null."""
        found: dict[str, Any] = plain(self)
        return found

    def having(self, **objects: Any) -> Self:
        """Return the record with objects that it was made from, by the names of its `Live` attributes."""
        vars(self).update(objects)
        return self

    def but(self, **fields: Any) -> Self:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **fields).having(**vars(self))

    def __copy__(self) -> Self:
        return self.but()


class Predicted(Record):
    """What a change makes of a step; times are ns per step.

    Attributes:
        optimization: its name, `a+b` for two.
        options: by name, those that were used.
        replayed_ns: the step without the change.
        predicted_ns: the step with it; None if that cannot be predicted, for this `reason`.
        predicted_low_ns: the lower end of its 90% interval, None where none was asked for.
        predicted_high_ns: the upper end.
        saving_ns: how much shorter the step gets; negative if it gets longer.
        speedup: replayed / predicted; infinite, null in JSON, if nothing is left of the step.
        speedup_low: the lower end of its 90% interval.
        speedup_high: the upper end.
        reason: why the step cannot be predicted, None if it can.
    """

    optimization: str
    options: Mapping[str, Any]
    replayed_ns: int
    predicted_ns: int | None = None
    predicted_low_ns: int | None = None
    predicted_high_ns: int | None = None
    saving_ns: int | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        """Fill in what the change saves."""
        self.saving_ns = self.speedup = None
        if self.predicted_ns is not None:
            self.saving_ns = self.replayed_ns - self.predicted_ns
            self.speedup = (
                self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")
            )


def plain(value: Any) -> Any:
    """Return what JSON holds of a value, as Python's objects; what is no finite number is null."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """Return what JSON holds of another type: NumPy's numbers and arrays as Python's, else a text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
