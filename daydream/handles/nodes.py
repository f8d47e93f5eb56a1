"""What a node of torch.fx says of itself: its operator, layer, source line and phase. torch is not needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from daydream.errors import HandleError
from daydream.lazy import regex
from daydream.trace.handle_map import LONGEST_TEXT, Handle

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
        raise HandleError(f"{node!r:.60} is no torch.fx.Node: it has no metadata. Give nodes, or handles=")
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
