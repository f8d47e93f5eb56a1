"""Everything of torch that is not public and that instrumentation needs.

No other module of `daydream.instrument` touches a private name of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daydream.instrument.tool import InstrumentError

NEEDED = "2.9"  # the first torch with `torch.library.get_kernel`
NOT_OPERATORS = (
    "profiler::",
    "prim::",
    "prims::",
    "debugprims::",
    "rngprims::",
)  # ranges, and stand-ins
# Torch makes a Parameter or another subclass of what these return; it must have no Python object until then.
NO_PYTHON = ("aten::detach", "aten::alias")
AUTOGRAD = {"cpu": "AutogradCPU", "cuda": "AutogradCUDA"}


def check_version() -> None:
    """Raise where this torch lacks what instrumentation stands on.

    Raises:
        InstrumentError: torch is absent or too old; says which version is needed.
    """
    try:
        import torch
        import torch.library
    except ImportError:
        raise InstrumentError(
            "instrumentation needs torch, which is not installed; pip install torch"
        ) from None
    core = vars(torch)["_C"]
    names = ("_dispatch_get_all_op_names", "_current_autograd_node")
    if not hasattr(torch.library, "get_kernel") or not all(hasattr(core, name) for name in names):
        raise InstrumentError(
            f"torch {torch.__version__} cannot call an operator's own kernel; instrumentation needs "
            f"torch {NEEDED} or newer"
        )


def dispatch_keys() -> list[str]:
    """Return the dispatch keys at which autograd is entered on this machine's devices."""
    import torch

    return [AUTOGRAD["cpu"], *([AUTOGRAD["cuda"]] if torch.cuda.is_available() else [])]


def registered() -> list[tuple[Any, bool]]:
    """Return all operators that pass the autograd layer, and whether each is made of others.

    Left out are variants that write to an `out=` argument, which autograd does not have, and what takes or
    returns no tensor.
    """
    import torch

    core: Any = vars(torch)["_C"]
    has = core._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    computed = core._dispatch_has_computed_kernel_for_dispatch_key  # noqa: SLF001
    found = []
    for name in core._dispatch_get_all_op_names():  # noqa: SLF001
        if (
            name in NO_PYTHON
            or name.startswith(NOT_OPERATORS)
            or not computed(name, AUTOGRAD["cpu"])
        ):
            continue
        op = overload(name)
        if op is not None and _takes_and_returns_tensors(op):
            found.append((op, bool(has(name, "CompositeImplicitAutograd"))))
    return found


def overload(name: str) -> Any:
    """Return the operator of a name as the dispatcher has it, `aten::add.Tensor`; None if Python has not."""
    import torch

    namespace, _, rest = name.partition("::")
    base, _, variant = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")
    except (AttributeError, RuntimeError):
        return None


def schema_of(op: Any) -> Any:
    """Return an operator's schema."""
    return op._schema  # noqa: SLF001


def _takes_and_returns_tensors(op: Any) -> bool:
    schema = schema_of(op)
    if any(argument.is_out for argument in schema.arguments):
        return False
    takes = any("Tensor" in str(one.type) for one in schema.arguments)
    return takes and (schema.is_mutable or any("Tensor" in str(one.type) for one in schema.returns))


def kernel_of(op: Any, key: str) -> Callable[..., Any] | None:
    """Return what calls an operator's kernel at a dispatch key, with a key set first; None if it has none.

    Torch hands the number of `x * 0.5`, a tensor of a special kind within the dispatcher, to Python as a
    number, and takes back no number where the kernel wants a tensor. The same autograd kernel lies at the
    key that stands for all devices, and is reached there in a way that does take it.
    """
    import torch

    try:
        kernel = torch.library.get_kernel(op, key)
    except RuntimeError:
        return None
    boxed: Callable[..., Any] = kernel.call_boxed
    places = [
        place for place, one in enumerate(schema_of(op).arguments) if str(one.type) == "Tensor"
    ][1:]
    if not places:
        return boxed
    core: Any = vars(torch)["_C"]
    has, name = core._dispatch_has_kernel_for_dispatch_key, op.name()  # noqa: SLF001
    keys_for_all = ("Autograd", "CompositeImplicitAutograd")
    other = getattr(
        core.DispatchKey,
        next((one for one in keys_for_all if has(name, one)), "AutogradOther"),
    )
    entered = op._op_dk  # noqa: SLF001

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        for place in places:
            if place < len(args) and isinstance(args[place], (int, float, complex)):
                return entered(other, *args, **kwargs)
        return boxed(keys, *args, **kwargs)

    return call


class Override:
    """An operator's kernel replaced in torch's dispatcher, until `remove`."""

    def __init__(self, op: Any, key: str, run: Callable[..., Any]) -> None:
        """Have the dispatcher call `run(key_set, *args, **kwargs)` for an operator."""
        import torch

        core: Any = vars(torch)["_C"]
        self._which = (op, key)
        # What torch.library.Library does, without a look at the stack for each of two thousand operators.
        self._library = core._dispatch_library("IMPL", op.namespace, "", __file__, 0)  # noqa: SLF001
        schema = schema_of(op)
        name = schema.name.partition("::")[2]
        full = f"{name}.{schema.overload_name}" if schema.overload_name else name
        self._library.impl(full, key, run, True)
        forget_dispatch(op)

    def remove(self) -> None:
        """Put back what was there.

        With several threads the replaced kernel is kept in memory: one of them may be on its way in.
        """
        import torch

        if threads_run():
            _ON_THEIR_WAY.append(torch.library.get_kernel(*self._which))
        self._library.reset()
        forget_dispatch(self._which[0])


_ON_THEIR_WAY: list[Any] = []


def threads_run() -> bool:
    """Return whether this process has other threads of Python."""
    import threading

    return threading.active_count() > 1


def current_node() -> Any:
    """Return what tells the autograd node that this thread runs at present, or None."""
    import torch

    core: Any = vars(torch)["_C"]
    return core._current_autograd_node  # noqa: SLF001


def is_tracing(values: Any) -> bool:
    """Return whether any of the values is a stand-in without data, as a compiler traces with."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return any(isinstance(each, (FakeTensor, FunctionalTensor)) for each in values)


def mode_on_top() -> Any:
    """Return the innermost dispatch mode of this thread, or None."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    stack = _get_current_dispatch_mode_stack()
    return stack[-1] if stack else None


def dispatch_mode(handle: Callable[..., Any]) -> Any:
    """Return a dispatch mode that has a function called with each operator, its arguments and keywords."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            del types
            return handle(func, args, kwargs or {})

    return Mode()


def on_compiled_call(callback_of: Callable[[Any], Any]) -> Callable[[], None]:
    """Have a function say, at each call of compiled code, what compiles it then.

    `callback_of` is given the compiler's callback; None has the call run uncompiled. What was compiled with
    one backend is kept while another compiles the same function. Returns what puts back what was there.
    """
    from torch._dynamo import eval_frame

    home: Any = eval_frame
    before = home._callback_from_stance  # noqa: SLF001

    def of_stance(callback: Any) -> Any:
        chosen = before(callback)
        return chosen if chosen in (None, False) else callback_of(chosen)

    home._callback_from_stance = of_stance  # noqa: SLF001

    def restore() -> None:
        home._callback_from_stance = before  # noqa: SLF001

    return restore


def with_backend(callback: Any, backend: Callable[..., Any], around: Callable[..., Any]) -> Any:
    """Return a compiler's callback that differs in its backend.

    `backend(theirs, graph, inputs)` compiles in the place of the callback's own, `theirs`; `around` is given
    the callback and its arguments each time.
    """
    from torch._dynamo import convert_frame

    convert = callback._torchdynamo_orig_backend  # noqa: SLF001
    theirs = convert._torchdynamo_orig_backend  # noqa: SLF001

    def compile_(graph: Any, inputs: Any) -> Any:
        return backend(theirs, graph, inputs)

    made = convert_frame.catch_errors_wrapper(convert._clone_with_backend(compile_), callback.hooks)  # noqa: SLF001

    def ours(*args: Any, **kwargs: Any) -> Any:
        return around(made, *args, **kwargs)

    ours._torchdynamo_orig_backend = made  # type: ignore[attr-defined]  # noqa: SLF001
    return ours


def called_as(made: Any, run: Any) -> Any:
    """Return a function that is called as compiled code is: with its inputs in a list, or one by one."""
    run._boxed_call = getattr(made, "_boxed_call", False)  # noqa: SLF001
    return run


def module_stack(node: Any) -> tuple[str, ...]:
    """Return the modules that a node of a graph ran in: `id`, and `@` with a number for further calls."""
    return tuple(str(key) for key in node.meta.get("nn_module_stack") or ())


def forget_dispatch(op: Any) -> None:
    """Have Python's part of the dispatcher, with which compilers trace, look for kernels anew."""
    op._dispatch_cache.clear()  # noqa: SLF001
