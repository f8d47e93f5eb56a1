"""What is not public of torch's compiler and recording needs, each with what is done without it.

Modules of the compiler are never loaded here: most scripts do without, and it takes a second.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

COMPILATIONS = "torch._dynamo.callback"  # the module that tells when torch compiles
DYNAMO_GRAPHS = "torch._dynamo.output_graph"  # the module that ends a graph, and knows why
DYNAMO_FRAMES = "torch._dynamo.convert_frame"  # the module that compiles a function, or leaves it as it is
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


def on_graph_breaks(tell: Callable[[str, str, Any], object]) -> None:
    """Have a function called for each graph break: the compiled frame's id, why, and the innermost frame.

    The module must have been imported. The id is that of the frame's range in a recording; the frame has
    `filename`, `lineno` and `name`, or is None. Without what it needs of torch, nothing is told.
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
                tell(str(frame), str(self.reason), self.user_stack[-1] if self.user_stack else None)

    reason.__post_init__ = note


def on_uncompiled_frames(tell: Callable[[Any, Any], object]) -> None:
    """Have a function called for each function that the compiler gave up: the error, and the code object.

    It then runs as it is, and what it calls is compiled by itself. The error has `msg`, `gb_type` and
    `real_stack`, as far as they are known. The module must have been imported. Without what it needs of
    torch, nothing is told.
    """
    frames: Any = sys.modules.get(DYNAMO_FRAMES)
    worded: Any = getattr(frames, "format_error_msg", None)  # of errors that end a function's compilation
    if worded is None:
        return

    def word(error: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # a fault of ours must not stop a compilation
            tell(error, code)
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
