"""What a tool is: a class with callbacks for events, and a result."""

from __future__ import annotations

import difflib
import re
from typing import TypeVar

from daydream.errors import DaydreamError

Class = TypeVar("Class", bound=type)
# callback for one event -> (callback for all of them as columns, kinds of rows)
CALLBACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "on_kernel": ("on_kernels", ("kernel", "collective")),
    "on_collective": ("on_collectives", ("collective",)),
    "on_copy": ("on_copies", ("memcpy", "memset")),
    "on_operator": ("on_operators", ("operator",)),
    "on_call": ("on_calls", ("runtime",)),
    "on_annotation": ("on_annotations", ("annotation",)),
    "on_allocation": ("on_allocations", ()),
    "on_step": ("on_steps", ()),
}
KNOWN = {name for one, (several, _) in CALLBACKS.items() for name in (one, several)}
MARK = "_daydream_tool"


class ToolError(DaydreamError):
    """A tool is none, or it failed."""


def tool(cls: Class) -> Class:
    """Make a class a tool: `@daydream.tool` above a class with callbacks and `result`.

    A tool has at least one callback and `result(self)`, which returns a mapping: numbers and texts by
    themselves, or lists of mappings, which are shown as tables. Columns end in their unit (`total_ns`,
    `bytes`). It is made without arguments. Callbacks:

    | one event at a time, by start time | all at once, as columns | what |
    |---|---|---|
    | `on_kernel` | `on_kernels` | kernels of a device, collectives included |
    | `on_collective` | `on_collectives` | collectives |
    | `on_copy` | `on_copies` | copies and memsets of a device |
    | `on_operator` | `on_operators` | operators of a CPU thread |
    | `on_call` | `on_calls` | calls of the CUDA or HIP runtime |
    | `on_annotation` | `on_annotations` | ranges that a person or a library named |
    | `on_allocation` | `on_allocations` | memory allocated and freed |
    | `on_step` | `on_steps` | steps |

    Those with columns run first, each once. Concept: PASTA (CGO 2026), sections 3 and 4.

    Returns:
        The class itself.

    Raises:
        ToolError: the class has no callback, one of an unknown name, or no `result`.
    """
    name = getattr(cls, "__name__", str(cls))
    own = [each for each in dir(cls) if each.startswith("on_")]
    for each in own:
        if each not in KNOWN:
            near = difflib.get_close_matches(each, KNOWN, 1)
            meant = (
                f"did you mean {near[0]}?" if near else f"callbacks are {', '.join(sorted(KNOWN))}"
            )
            raise ToolError(f"{name} has {each}, which is no callback; {meant}")
    if not own:
        raise ToolError(f"{name} has no callback, such as on_kernel(self, kernel)")
    if not callable(getattr(cls, "result", None)):
        raise ToolError(f"{name} has no result(self), which returns what it found as a mapping")
    setattr(cls, MARK, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    return cls
