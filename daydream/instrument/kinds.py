"""The kinds of operators that can be instrumented, and their arguments at the places of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from daydream.instrument import torch_private


@dataclass(eq=False)
class Kind:
    """One operator of torch, with what of its schema is needed."""

    op: Any
    composite: bool

    @cached_property
    def name(self) -> str:
        """The full name: `aten::add.Tensor`."""
        schema = torch_private.schema_of(self.op)
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)

    @cached_property
    def type(self) -> str:
        """The name without namespace and overload: `add`."""
        return str(torch_private.schema_of(self.op).name.partition("::")[2])

    @cached_property
    def writes(self) -> bool:
        """Whether it writes to an argument."""
        return bool(torch_private.schema_of(self.op).is_mutable)

    @cached_property
    def written(self) -> frozenset[int]:
        """The places of the arguments that it writes to."""
        arguments = torch_private.schema_of(self.op).arguments
        return frozenset(
            place
            for place, one in enumerate(arguments)
            if one.alias_info is not None and one.alias_info.is_write
        )

    @cached_property
    def is_view(self) -> bool:
        """Whether an output shares memory with an input that it does not write to."""
        returns = torch_private.schema_of(self.op).returns
        return not self.writes and any(one.alias_info is not None for one in returns)

    @cached_property
    def _arguments(self) -> tuple[list[tuple[str, Any]], int]:
        arguments = torch_private.schema_of(self.op).arguments
        default = [
            (one.name, one.default_value if one.has_default_value() else None) for one in arguments
        ]
        return default, sum(not one.kwarg_only for one in arguments)

    def at_places(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return all arguments in the order of the schema, defaults included."""
        rest = self._arguments[0][len(args) :]
        return [*args, *(kwargs.get(name, default) for name, default in rest)]

    def split(self, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in the order of the schema as positional ones and keywords."""
        names, positional = self._arguments
        return tuple(values[:positional]), {
            name: value
            for (name, _), value in zip(names[positional:], values[positional:], strict=True)
        }


_KNOWN: dict[str, Kind] = {}


def all_kinds() -> list[Kind]:
    """Return all kinds that pass the autograd layer; those of a custom operator once it is defined."""
    return [kind_of(op, composite=composite) for op, composite in torch_private.registered()]


def kind_of(op: Any, *, composite: bool = False) -> Kind:
    """Return the kind of one operator."""
    name = str(op)
    if name not in _KNOWN or _KNOWN[name].op is not op:
        _KNOWN[name] = Kind(op, composite)
    return _KNOWN[name]
