"""DebugHandleMapBuilder: a map of debug handles, made an entry at a time while something is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daydream.errors import HandleError
from daydream.handles.nodes import handle_of
from daydream.trace.handle_map import RULES, DebugHandleMap, Handle, Identifier, check_identifier


class DebugHandleMapBuilder:
    """Collects entries; its identifiers are all given by the caller, or all made: 0, 1, 2, ...

    `rule` is how a piece's time is shared: by "flop" or "bytes", the weights of its handles, or "equal".
    Use a builder for each thing that is compiled.

    Example::

        builder = daydream.DebugHandleMapBuilder(generated_identifiers=True)
        fused = builder.insert(handles=[daydream.Handle("aten::add"), daydream.Handle("aten::relu")])
        assert fused == 0

    """

    def __init__(self, generated_identifiers: bool = False, *, rule: str = "equal") -> None:  # noqa: FBT001, FBT002 - as ExecuTorch's
        if rule not in RULES:
            raise HandleError(f"unknown rule {rule!r:.60}; choose {', '.join(RULES)}")
        self._generated = bool(generated_identifiers)
        self._rule = rule
        self._entries: dict[Identifier, tuple[Handle, ...]] = {}

    def insert(
        self, *, nodes: Any = None, handles: Handle | Iterable[Handle] | None = None,
        identifier: Identifier | None = None,
    ) -> Identifier:  # fmt: skip
        """Add an entry and return its identifier.

        Args:
            nodes: one `torch.fx.Node` or several, from whose metadata the handles are read.
            handles: one `Handle` or several, in the place of nodes.
            identifier: a whole number or a text, where the builder makes none.

        Raises:
            HandleError: both or neither of nodes and handles are given, the entry is empty, the identifier
                is there already, is of another kind than the others, is missing, or is given where the
                builder makes them.

        """
        if (nodes is None) == (handles is None):
            found = "neither nodes nor handles were" if nodes is None else "nodes and handles were both"
            raise HandleError(f"{found} given; give exactly one of the two")
        given: Any = handles if nodes is None else nodes
        several: list[Any] = [given] if isinstance(given, Handle) or hasattr(given, "meta") else list(given)
        if not several:
            raise HandleError("an entry has no handles; give one at least, or insert nothing")
        key = self._key(identifier)
        entry = several if nodes is None else [handle_of(node) for node in several]
        self._entries[key] = DebugHandleMap({key: entry})[key]
        return key

    def _key(self, identifier: Identifier | None) -> Identifier:
        if self._generated:
            if identifier is not None:
                raise HandleError(
                    f"this builder makes its identifiers, and {identifier!r:.60} was given; leave it out, or "
                    "make the builder without generated_identifiers"
                )
            return len(self._entries)
        if identifier is None:
            raise HandleError(
                "no identifier was given; give one, or make the builder with generated_identifiers=True"
            )
        key = check_identifier(identifier, self._entries)
        if key in self._entries:
            raise HandleError(
                f"the identifier {key!r:.60} is there already; give each compiled piece its own, with "
                "all its handles at once"
            )
        return key

    def build(self) -> DebugHandleMap:
        """Return the map of what was inserted so far."""
        return DebugHandleMap(self._entries, rule=self._rule)
