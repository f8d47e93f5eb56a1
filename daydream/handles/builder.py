"""DebugHandleMapBuilder: a map of debug handles, made an entry at a time while something is compiled.

What a node of torch.fx says of itself: its operator, layer, source line and phase. torch is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from daydream.errors import HandleError
from daydream.lazy import regex
from daydream.trace.handle_map import (
    LONGEST_TEXT,
    RULES,
    DebugHandleMap,
    Handle,
    Identifier,
    check_identifier,
)

OVERLOAD = regex(r"^(\w+)\.(\w+)(?:\.\w+)?$")  # aten.addmm.default, as str(node.target) says
PARTS = regex(
    r"""\._modules\[['"]([^'"]+)['"]\]|\[['"]?([^'"\]]+)['"]?\]|getattr\(([^,]+), ['"]([^'"]+)['"]\)"""
)
ROOTS = regex(r"^([LG]\.\w+|self|L__self__|[LG])(\.|$)")
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
FRAME = regex(r'File "(?:[^"]*[/\\])?([^"/\\]+)", line (\d+), in (\S+)')


def handle_of(node: Any) -> Handle:
    """Return the handle of a `torch.fx.Node`. Raises `HandleError` for what has no metadata, as nodes do."""
    meta = getattr(node, "meta", None)
    if not isinstance(meta, Mapping):
        raise HandleError(
            f"{node!r:.60} is no torch.fx.Node: it has no metadata. Give nodes, or handles="
        )
    target = getattr(node, "target", None)
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    backward = meta.get("partitioner_tag") == "is_backward" or "fwd_nn_module_stack" in meta
    return Handle(
        operator_name(str(target or getattr(node, "name", "") or "unknown")),
        layer=layer_path(_innermost(stack)),
        source=source_line(str(meta.get("stack_trace") or "")),
        phase="backward" if backward else "",
    )


def operator_name(target: str) -> str:
    """Return the name that the profiler gives an operator: `aten::addmm` of `aten.addmm.default`."""
    found = OVERLOAD.match(target)
    return f"{found.group(1)}::{found.group(2)}" if found else target[:LONGEST_TEXT]


def layer_path(path: str) -> str:
    """Return a qualified module path without what tracing and wrapping put around it.

    `L['self'].blocks[1].fc2`, `L['self']._modules['blocks']._modules['1'].fc2` and
    `_orig_mod.blocks.1.fc2` are all `blocks.1.fc2`; the model itself is the empty path.
    """
    plain = path
    while (shorter := PARTS.sub(_dotted, plain)) != plain:
        plain = shorter
    plain = ROOTS.sub("", plain.lstrip("."))
    return ".".join(part for part in plain.split(".") if part and part not in WRAPPERS)


def _dotted(found: re.Match[str]) -> str:
    modules, index, owner, attribute = found.groups()
    return f"{owner}.{attribute}" if owner is not None else f".{modules or index}"


def source_line(stack: str) -> str:
    """Return the innermost line of a stack trace as `model.py(12): forward`; empty if there is none."""
    frames = FRAME.findall(stack)
    return "{}({}): {}".format(*frames[-1])[:LONGEST_TEXT] if frames else ""


def _innermost(stack: Any) -> str:
    """Return the path of the last module of an `nn_module_stack`: key -> (path, type)."""
    last = list(stack.values())[-1:] if isinstance(stack, Mapping) else []
    return str(last[0][0]) if last and isinstance(last[0], tuple | list) and last[0] else ""


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
        self,
        *,
        nodes: Any = None,
        handles: Handle | Iterable[Handle] | None = None,
        identifier: Identifier | None = None,
    ) -> Identifier:
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
            found = (
                "neither nodes nor handles were" if nodes is None else "nodes and handles were both"
            )
            raise HandleError(f"{found} given; give exactly one of the two")
        given: Any = handles if nodes is None else nodes
        several: list[Any] = (
            [given] if isinstance(given, Handle) or hasattr(given, "meta") else list(given)
        )
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
