"""What is not public of torch's compiler and recording needs, each with what is done without it.

Modules of the compiler are never loaded here: most scripts do without, and it takes a second.

When torch compiles: it says so itself, to those who asked before it began.

What Inductor's graphs of this process came from: kept as they are compiled or read from a cache.

Asked for before the script compiles, so that nothing is compiled twice. A graph is described while it is
compiled, when its nodes are there, and the description goes into Inductor's caches with it. A graph
that another program compiled with provenance has none: its operators are read from the kernels' names.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from daydream.collect.derive.compiled_calls import FUSED, CompiledGraph, plain_name
from daydream.collect.derive.device_work import operators_of_kernel
from daydream.collect.launcher.inject.sitecustomize import AfterImport
from daydream.handles.builder import handle_of
from daydream.trace.handle_map import Handle
from daydream.trace.schema import Document

COMPILATIONS = "torch._dynamo.callback"  # the module that tells when torch compiles
DYNAMO_GRAPHS = "torch._dynamo.output_graph"  # the module that ends a graph, and knows why
DYNAMO_FRAMES = (
    "torch._dynamo.convert_frame"  # the module that compiles a function, or leaves it as it is
)
INDUCTOR = "torch._inductor.compile_fx"  # the module that compiles a graph; what it needs is loaded with it

OURS = "daydream"  # in what Inductor stores with a compiled graph


def on_compilations(tell: Callable[[bool], object]) -> None:
    """Have a function called with True when torch begins to compile and with False when it is done.

    The module must have been imported. Without what it has since torch 2.4, nothing is told.
    """
    handler: Any = getattr(sys.modules.get(COMPILATIONS), "callback_handler", None)
    if handler is not None:
        handler.register_start_callback(lambda *_: tell(True))
        handler.register_end_callback(lambda *_: tell(False))


def on_graph_breaks() -> None:
    """Keep the graph breaks from now on: the id of the compiled frame's range, why, and the innermost frame.

    The module must have been imported. Without what it needs of torch, nothing is kept.
    """
    reason: Any = getattr(sys.modules.get(DYNAMO_GRAPHS), "GraphCompileReason", None)
    noted: Any = getattr(reason, "__post_init__", None)
    if noted is None:
        return

    def note(self: Any) -> None:
        noted(self)
        with contextlib.suppress(Exception):  # a fault of ours must not stop a compilation
            from torch._guards import CompileContext

            frame = CompileContext.current_compile_id()
            if self.graph_break and frame is not None:
                _keep_break(str(frame), str(self.reason), self.user_stack[-1:])

    reason.__post_init__ = note


def on_uncompiled_frames() -> None:
    """Keep the functions that the compiler gives up from now on; they run as they are, what they call may not.

    The module must have been imported. Without what it needs of torch, nothing is kept.
    """
    frames: Any = sys.modules.get(DYNAMO_FRAMES)
    worded: Any = getattr(
        frames, "format_error_msg", None
    )  # of errors that end a function's compilation
    if worded is None:
        return

    def word(error: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # a fault of ours must not stop a compilation
            _keep_uncompiled(error, code)
        return worded(error, code, *args, **kwargs)

    frames.format_error_msg = word


def leave_uncompiled(*functions: Any) -> None:
    """Have the compiler run these functions as they are where it meets them as frames of their own.

    Within what it compiles they are inlined as before: no graph is broken. Does nothing where this torch
    does not know how.
    """
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return
    frames: Any = eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # noqa: SLF001 - the frame, and what it calls
        for function in functions:
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001


def keep_provenance(
    describe: Callable[[Any], Any], keep: Callable[[str | None, dict[str, Any]], None]
) -> bool:
    """Have Inductor keep what each kernel call came from, for all that is compiled from now on.

    Inductor's module must have been imported. `describe` makes what is kept, as JSON has it, of each node
    of a compiled graph; it is stored with the graph, also in Inductor's caches. `keep` is called when a
    graph is ready, made or read from a cache: with the graph's key and with `order`, the names of its kernel
    calls as `NAME:NUMBER`, `nodes` of each call and `described` of each node, as far as they are known, and
    `backward`.
    On the CPU, kernels are told to name themselves to the profiler. Returns False where this torch has
    nothing of that kind; then it compiles as before.
    """
    try:
        from torch._inductor import config, debug
        from torch._inductor.output_code import CompiledFxGraph
        from torch._inductor.virtualized import V
    except ImportError:
        return False
    inductor: Any = debug
    compiled: Any = CompiledFxGraph
    settings: Any = config
    dump = getattr(inductor, "dump_inductor_provenance_info", None)
    known = getattr(inductor, "_inductor_kernel_stack_trace", None)
    if dump is None or known is None or not hasattr(settings.trace, "provenance_tracking_level"):
        return False
    if not hasattr(compiled, "inductor_provenance_mapping_str") and (
        "inductor_provenance_mapping_str" not in getattr(compiled, "__annotations__", {})
    ):
        return False
    if settings.trace.provenance_tracking_level == 0:
        settings.trace.provenance_tracking_level = 1
    settings.cpp.enable_kernel_profile = True

    earlier: dict[int, Any] = {}  # torch keeps entries of graphs before, as the same lists

    def dump_with_nodes() -> Any:
        mapping = dump()
        with contextlib.suppress(Exception):  # a fault of ours must not stop a compilation
            handler: Any = V.graph
            nodes = inductor._inductor_triton_kernel_to_post_grad_node_info  # noqa: SLF001
            own = {name: of for name, of in nodes.items() if id(of) not in earlier}
            earlier.update((id(of), of) for of in own.values())
            mapping[OURS] = {
                "backward": bool(handler.is_backward),
                "order": list(own),
                "nodes": own,
                "described": {
                    node.name: describe(node)
                    for node in handler.module.graph.nodes
                    if node.op not in ("placeholder", "output")
                },
            }
        return mapping

    ready: Any = compiled.post_compile

    def post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = ready(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            mapping = json.loads(self.inductor_provenance_mapping_str or "{}")
            stacks = json.loads(self.inductor_provenance_stack_traces_str or "{}")
            nodes = mapping.get("cppCodeToPost", {})
            theirs = {"order": list({**nodes, **stacks}), "nodes": nodes, "described": {}}
            keep(self._fx_graph_cache_key, mapping.get(OURS) or theirs)
        return result

    inductor.dump_inductor_provenance_info = dump_with_nodes
    compiled.post_compile = post_compile
    return True


def watch_compiler(tell: Callable[[bool], object]) -> None:
    """Keep what the compiler does from now on, without loading it: most scripts do without.

    `tell` is called with True when torch begins to compile, with False when it is done. Kept are the
    provenance of Inductor's graphs, and place and reason of graph breaks and of functions left uncompiled.
    """
    watched: dict[str, Callable[[], object]] = {
        COMPILATIONS: lambda: on_compilations(tell),
        INDUCTOR: _begin,
        DYNAMO_GRAPHS: on_graph_breaks,
        DYNAMO_FRAMES: on_uncompiled_frames,
    }
    for module, act in watched.items():
        if module in sys.modules:
            act()
        else:
            sys.meta_path.insert(0, AfterImport(module, act))


_kept: list[tuple[str, Document]] = []
_lacking: list[bool] = []  # whether a torch was met that keeps nothing

_breaks: list[Document] = []
_uncompiled: dict[str, Document] = {}  # by the function's source line
RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)+(\w+?)(?:_at_\d+)+$")
MOST_BREAKS = 1_000
LONGEST = 200
NO_WORK = -1
COPY = "aten::copy_"
UNSAFE_VIEW = "aten::_unsafe_view"  # a view, though its operator does not say so
LACKING = "This torch keeps no provenance of compiled kernels: they have no operators and layers."


def _keep_break(region: str, reason: str, stack: Any) -> None:
    if len(_breaks) >= MOST_BREAKS or any(one["region"] == region for one in _breaks):
        return
    _breaks.append({"region": region, "reason": _first_line(reason), "source": _innermost(stack)})


def _keep_uncompiled(error: Any, code: Any) -> None:
    source = _place(code.co_filename, code.co_firstlineno, code.co_name)
    if len(_uncompiled) >= MOST_BREAKS or source in _uncompiled:
        return
    at = _innermost(getattr(error, "real_stack", None))
    reason = _first_line(getattr(error, "msg", "") or error)
    sort = getattr(error, "gb_type", "")
    if sort and sort != reason:
        reason = f"{sort} ({reason})"[:LONGEST]
    _uncompiled[source] = {"source": source, "reason": reason, "at": at}


def _innermost(stack: Any) -> str | None:
    """Return file, line and function of a stack's last frame; None if it has none."""
    frames = [(each.filename, each.lineno, each.name) for each in stack or ()]
    return _place(*frames[-1]) if frames else None


def _place(file: str, line: int, function: str) -> str:
    name = re.split(r"[/\\]", str(file))[-1]
    plain = RESUMED.sub(r"\1", str(function))
    return f"{name}({int(line)}): {plain}"[:LONGEST]


def _first_line(text: Any) -> str:
    return str(text).strip().partition("\n")[0][:LONGEST]


def graph_breaks() -> list[Document]:
    """Return region, reason and source line of the graph breaks so far; each compiled frame has one."""
    return list(_breaks)


def uncompiled_frames() -> list[Document]:
    """Return source line, reason and place of the reason of each function that was left uncompiled so far."""
    return list(_uncompiled.values())


def _begin() -> None:
    if not keep_provenance(describe, lambda key, document: _kept.append((str(key), document))):
        _lacking.append(True)


def notes() -> list[str]:
    """Return what is to be said where a torch was met that keeps nothing."""
    return [LACKING] if _lacking else []


def compiled_graphs() -> list[CompiledGraph]:
    """Return the graphs that were compiled, or read from a cache, so far."""
    return [graph_of(key, document) for key, document in _kept]


def describe(node: Any) -> list[Any]:
    """Return operator, layer, source line and bytes of a node of a compiled graph, as JSON has them.

    A view is no work: it only says how the others find their elements, and has NO_WORK for bytes. So has a
    constant of one element: of equal ones the compiler keeps the first, of whatever layer, and writes it into
    each kernel. A copy that writes back what a layer made, as batch norm's running statistics, belongs to
    that layer.
    """
    handle = handle_of(node)
    view = handle.operator == UNSAFE_VIEW or getattr(node.target, "is_view", False)
    if view or _is_constant(node):
        return [handle.operator, handle.layer, handle.source, NO_WORK]
    if handle.operator == COPY and not handle.layer:
        copied = [made for one in node.all_input_nodes if (made := handle_of(one)).layer]
        handle = (
            replace(handle, layer=copied[-1].layer, source=copied[-1].source) if copied else handle
        )
    nbytes = bytes_of(getattr(node, "meta", {}).get("val"))
    nbytes += sum(bytes_of(getattr(one, "meta", {}).get("val")) for one in node.all_input_nodes)
    return [handle.operator, handle.layer, handle.source, nbytes]


def _is_constant(node: Any) -> bool:
    """Return whether a node makes one element of nothing."""
    value: Any = getattr(node, "meta", {}).get("val")
    if node.all_input_nodes or not hasattr(value, "element_size"):
        return False
    return bytes_of(value) == int(value.element_size())


def bytes_of(value: Any) -> int:
    """Return the bytes of a tensor or of several; 0 of what has none, or whose sizes are not known."""
    if isinstance(value, list | tuple):
        return sum(bytes_of(each) for each in value)
    if not hasattr(value, "element_size"):
        return 0
    try:
        elements = 1
        for size in value.shape:
            elements *= _hint(size)
        return elements * int(value.element_size())
    except (RuntimeError, TypeError, ValueError):
        return 0


def _hint(size: Any) -> int:
    """Return a size as a number: of a dynamic one, what it was when the graph was compiled. Adds no guard."""
    symbol = getattr(size, "node", None)
    return int(size) if symbol is None else int(symbol.hint)


def graph_of(key: str, document: Document) -> CompiledGraph:
    """Return a graph from what was kept of it, its kernel calls in order."""
    phase = "backward" if document.get("backward") else ""
    described = document["described"]
    nodes = document["nodes"]
    order = document["order"]
    known = {name: [one for one in nodes.get(name, []) if one in described] for name in order}
    calls = {
        name: [one for one in known[name] if plain_name(described[one][0]) == plain_name(name)]
        for name in order
        if not FUSED.match(name)
    }
    called = {one for mine in calls.values() for one in mine}
    names = []
    handles = []
    for name in order:
        # A call of a library does its own operator alone, and nothing else does that one.
        own = calls.get(name) or [one for one in known[name] if one not in called] or known[name]
        found = [described[one] for one in own]
        work = [one for one in found if one[3] != NO_WORK] or found
        mine = [
            Handle(op, layer, source, phase, max(nbytes, 0)) for op, layer, source, nbytes in work
        ]
        names.append(name)
        handles.append(
            tuple(mine) or tuple(Handle(op, phase=phase) for op in operators_of_kernel(name))
        )
    return CompiledGraph(key, tuple(names), tuple(handles))
