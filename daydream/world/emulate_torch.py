"""What is replaced of torch in a process whose GPU is emulated: its functions for a GPU, and its CPU's operators.

A build of torch without CUDA knows the word `cuda`, and no more. Its operators for the CPU stand for CUDA's where
these are the same; autocast's lists, attention and dropout are not, and are replaced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import _enable_record_function
from torch.utils._python_dispatch import _disable_current_modes

from daydream.costs.devices import Device
from daydream.costs.operators import operator

if TYPE_CHECKING:
    from daydream.world.emulate import Emulation

GPU = torch.device("cuda", 0)
LSTM, GRU = 2, 3  # cuDNN's modes
HOPPER = 9.0  # its compute capability
NOTHING = (
    "init",
    "_lazy_init",
    "set_device",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
)  # functions of `torch.cuda` that do nothing


def replace(gpu: Emulation, stack: ExitStack) -> None:
    """Replace all of it until the stack is closed."""
    _replace_tensors(gpu, stack)
    how = {
        "_apply": functools.partialmethod(_apply, gpu),
        "compile": lambda *_, **__: _compile(gpu),
    }
    _put(stack, nn.Module, **how)
    optimizers = sys.modules["torch.optim.optimizer"]
    listed = optimizers._foreach_supported_types
    _put(stack, optimizers, _foreach_supported_types=[*listed, FakeTensor])
    _replace_cuda(gpu, stack)
    _replace_with_values(gpu, stack)
    library = torch.library.Library("aten", "IMPL")
    stack.callback(library._destroy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that operators are replaced
        functions = {
            "scaled_dot_product_attention": functools.partial(_attend, gpu.device),
            "dropout": _drop,
            "linear": _linear,
            "_pad_packed_sequence": _unpack,
            "_cudnn_rnn": _cudnn,
            "_cudnn_rnn_backward": _cudnn_backward,
        }
        for mode, name in enumerate(("rnn_relu", "rnn_tanh", "lstm", "gru")):
            functions[f"{name}.input"] = functools.partial(_recur, mode)
            functions[f"{name}.data"] = functools.partial(_recur, mode, packed=True)
        for name, function in functions.items():
            key = "Meta" if "cudnn" in name else "CompositeImplicitAutograd"
            library.impl(name, function, key, allow_override=True)
        _replace_autocast(library, stack)


def _put(stack: ExitStack, owner: Any, **functions: Any) -> None:
    """Set attributes of a module or class until the stack is closed."""
    stack.enter_context(patch.multiple(owner, create=True, **functions))


def _replace_tensors(gpu: Emulation, stack: ExitStack) -> None:
    """Let tensors say where they are, and go where they are sent."""
    own_to = Tensor.to
    own_copy = Tensor.__deepcopy__
    own_device: Any = Tensor.__base__.device.__get__
    own_fake_device = vars(FakeTensor)["device"].fget

    def device_of(tensor: Any) -> Any:
        """Return the device, of a `DTensor` that of its local part."""
        if not isinstance(tensor, FakeTensor):
            local = getattr(tensor, "_local_tensor", None)
            return own_device(tensor) if local is None else local.device
        if gpu.inside or gpu.fake.in_kernel_invocation:
            return own_fake_device(tensor)
        return GPU if gpu.on_gpu(tensor) else tensor.fake_device

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        dtype = kwargs.pop("dtype", None)
        for one in (*args, kwargs.pop("other", None)):
            if isinstance(one, Tensor):
                device = one.device
                dtype = one.dtype
            elif isinstance(one, torch.dtype):
                dtype = one
            elif isinstance(one, str | torch.device) or type(one) is int:
                device = one
        kwargs |= {} if dtype is None else {"dtype": dtype}
        wanted = "cuda" if isinstance(device, int) else torch.device(device or "cpu").type
        if device is None or wanted not in ("cuda", "cpu"):
            return own_to(tensor, **kwargs, **({} if device is None else {"device": device}))
        if type(tensor) in (Tensor, nn.Parameter) and wanted == "cuda":
            tensor = gpu.fake.from_tensor(tensor)
        if not isinstance(tensor, FakeTensor) or (wanted == "cuda") == gpu.on_gpu(tensor):
            return own_to(tensor, **kwargs)
        gpu.crossing = "HtoD" if wanted == "cuda" else "DtoH"
        try:
            return own_to(tensor, **{**kwargs, "copy": True})
        finally:
            gpu.crossing = ""

    def on_device(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            found = make(*args, **kwargs)
            return found if device is None else to(found, device)

        return made

    def sent(device: str) -> Callable[..., Tensor]:
        return lambda tensor, *_, **__: to(tensor, device)

    def copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        """Copy a fake tensor by an operator: torch's own way gives one whose views have another storage."""
        if not isinstance(tensor, FakeTensor):
            return own_copy(tensor, memo)
        if id(tensor) not in memo:
            made = tensor.detach().clone()
            own_type = nn.Parameter if isinstance(tensor, nn.Parameter) else Tensor.requires_grad_
            memo[id(tensor)] = own_type(made, tensor.requires_grad)
        return memo[id(tensor)]

    def is_of(kind: str) -> property:
        return property(lambda tensor: device_of(tensor).type == kind)

    for of in (FakeTensor, Tensor):
        _put(stack, of, device=property(device_of), is_cuda=is_of("cuda"), is_cpu=is_of("cpu"))
    _put(
        stack,
        Tensor,
        to=to,
        __deepcopy__=copied,
        cuda=sent("cuda"),
        cpu=sent("cpu"),
        pin_memory=lambda tensor, *_: tensor,
        record_stream=lambda *_: None,
    )
    _put(
        stack,
        torch,
        tensor=on_device(torch.tensor),
        as_tensor=on_device(torch.as_tensor),
        save=functools.partial(_leave_out, gpu, "torch.save wrote nothing"),
        compile=functools.partial(_compile, gpu),
    )


def _leave_out(gpu: Emulation, what: str, *_: Any, **__: Any) -> bool:
    """Do nothing but say so: files that there may be stay, as do the buckets that DDP has."""
    gpu.left_out[what] = None
    return False


def _compile(gpu: Emulation, model: Any = None, **_: Any) -> Any:
    """Return what was to be compiled as it is."""
    _leave_out(gpu, "torch.compile was left out, and the program ran as without it")
    gpu.compiled = True
    return (lambda function: function) if model is None else model


def _apply(module: nn.Module, gpu: Emulation, function: Any, recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002
    """Change a module's tensors in place; one that only moves to the GPU stays the tensor that it is."""
    for child in module.children() if recurse else ():
        child._apply(function)
    for held in (module._parameters, module._buffers):
        for old in (one for one in held.values() if one is not None):
            with torch.no_grad():
                new = function(old)
            if (new.dtype, new.shape, new.stride()) != (old.dtype, old.shape, old.stride()):
                old.data = new
            if gpu.on_gpu(new):
                gpu.place(old)
    return module


def _replace_with_values(gpu: Emulation, stack: ExitStack) -> None:
    """Let what needs values have them: meshes of ranks, loaders of data. Let sizes of storages be followed."""
    from torch import distributed
    from torch.distributed import device_mesh
    from torch.utils.data import DataLoader

    def outside(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **kwargs)

        return call

    def batches(loader: Any) -> Iterator[Any]:
        with _disable_current_modes():
            source = own_batches(loader)
        while True:
            _enable_record_function(False)  # how long it takes without values says nothing
            try:
                with _disable_current_modes():
                    batch = next(source, stack)
            finally:
                _enable_record_function(True)
            if batch is stack:
                return
            yield batch

    def resize(storage: Any, size: int) -> Any:
        found = own_resize(storage, size)
        gpu.resize(storage)
        return found

    mesh = device_mesh.DeviceMesh
    own_batches = DataLoader.__iter__
    own_resize = torch.UntypedStorage.resize_
    for name in ("__init__", "__getitem__", "_flatten", "_concatenate"):
        _put(stack, mesh, **{name: outside(getattr(mesh, name))})
    for module in (distributed, device_mesh):
        _put(stack, module, init_device_mesh=outside(device_mesh.init_device_mesh))
    _put(stack, DataLoader, __iter__=batches)
    # What DDP does in memory: comparing sizes of parameters between ranks, telling ranks the order of gradients.
    _put(stack, distributed, _verify_params_across_processes=lambda *_: None)
    if distributed.is_available():
        buckets = "DDP's buckets stay those of its first step, by the order of the parameters"
        _put(stack, distributed.Reducer, _rebuild_buckets=lambda _: _leave_out(gpu, buckets))
    _put(stack, torch.UntypedStorage, resize_=resize)


class Stub:
    """A stream or an event: what is asked of it is done at once."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what they take."""

    def __getattr__(self, name: str) -> Any:
        """Return a method that does nothing: an event is over, and no time has passed."""
        return lambda *_, **__: True if name == "query" else 0.0


def _replace_cuda(gpu: Emulation, stack: ExitStack) -> None:
    """Let `torch.cuda` speak of the emulated GPU."""
    device = gpu.device
    memory = device.memory * 10**9
    capability = divmod(round(10 * device.capability), 10)
    properties = types.SimpleNamespace(
        name=f"NVIDIA {device.name}",
        total_memory=memory,
        multi_processor_count=device.units,
        major=capability[0],
        minor=capability[1],
    )
    constants: dict[str, Any] = {
        **dict.fromkeys(NOTHING),
        **dict.fromkeys(("is_available", "is_bf16_supported"), True),
        "is_initialized": False,  # or our recorder would ask for what it recorded
        "device_count": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "memory_stats": {},
        "mem_get_info": (memory, memory),
        "get_rng_state": torch.get_rng_state(),
        "stream": contextlib.nullcontext(),
        "current_stream": Stub(),
        "default_stream": Stub(),
    }
    functions: dict[str, Callable[..., Any]] = {
        name: functools.partial(lambda found, *_, **__: found, found)
        for name, found in constants.items()
    }
    functions["reset_peak_memory_stats"] = lambda *_: gpu.forget_peak()
    functions["synchronize"] = lambda *_: gpu.wait()
    for name in ("memory_allocated", "memory_reserved"):
        functions[name] = lambda *_: gpu.held_bytes
        functions[f"max_{name}"] = lambda *_: gpu.peak_bytes
    _put(stack, torch.cuda, **functions, Event=Stub, Stream=Stub)
    _put(stack, torch.backends.cudnn, is_acceptable=lambda _: False)  # who asks would call it


def _attend(
    device: Device,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's own arguments
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Return attention as CUDA chooses it.

    In 16 bits cuDNN's on Hopper and later, flash attention before; in 32 bits or with a mask the
    memory-efficient one; with a mask that learns, none of them.
    """
    aten = torch.ops.aten
    form = aten._scaled_dot_product_flash_attention
    given: tuple[Any, ...] = ()
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    if query.dim() != 4 or (mask is not None and mask.requires_grad) or query.shape[-1] % 4:
        form = aten._scaled_dot_product_attention_math
        given = (mask,)
    elif query.dtype == torch.float32 or mask is not None:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        if mask is not None:
            mask = mask.expand(*query.shape[:-1], key.shape[-2])
        form = aten._scaled_dot_product_efficient_attention
        given = mask, query.requires_grad
    elif device.capability >= HOPPER and query.shape[-1] <= 256:
        form = aten._scaled_dot_product_cudnn_attention
        given = None, query.requires_grad
    return form(query, key, value, *given, dropout, is_causal, scale=scale)[0]


def _drop(x: Tensor, p: float, train: bool) -> Tensor:  # noqa: FBT001 - torch's own arguments
    return torch.native_dropout(x, p, train)[0] if train and 0 < p < 1 else x


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear layer of tensors that are no fakes: torch adds the bias of fakes out of place."""
    turned = weight.t()
    if bias is None:
        return x @ turned
    if x.dim() == 2 or (x.dim() > 2 and x.is_contiguous()):
        return torch.addmm(bias, x.flatten(0, -2), turned).view(*x.shape[:-1], -1)
    return (x @ turned).add_(bias)


def _recur(mode: int, x: Tensor, *given: Any, packed: bool = False) -> tuple[Tensor, ...]:
    """Return what a recurrent layer gives, as cuDNN's one operator: its result and the last states.

    Of packed sequences it is given first how many there are at each time.
    """
    sizes: list[int] = []
    if packed:
        sizes, given = [*map(int, given[0])], (*given[1:], False)
    state, weights, _, layers, dropout, train, both, batch_first = given
    hidden, cell = state if mode == LSTM else (state, None)
    width = (hidden if cell is None else cell).shape[2]
    projected = 0 if hidden.shape[2] == width else hidden.shape[2]
    stride = len(weights) // (layers * (2 if both else 1))
    found = torch.ops.aten._cudnn_rnn(
        x, weights, stride, None, hidden, cell, mode, width, projected, layers, batch_first, dropout,
        train, both, sizes, None,
    )  # fmt: skip
    return tuple(found[: 2 if cell is None else 3])


def reaching(lengths: Any) -> Tensor:
    """Return how many of some lengths reach each place; of these numbers, the lengths again."""
    with _disable_current_modes():
        lengths = torch.as_tensor(lengths)
        return (lengths[:, None] > torch.arange(lengths.max().item())).sum(0)


def _unpack(
    x: Tensor,
    sizes: Tensor,
    batch_first: bool,  # noqa: FBT001 - torch's own arguments
    padding: float,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Return packed sequences padded, and their lengths."""
    lengths = reaching(sizes)
    longest = max(longest, len(sizes))
    batch = len(lengths)
    missing = longest * batch - len(x)
    padded = nn.functional.pad(x, (*[0] * (2 * x.dim() - 1), missing), value=padding)
    padded = padded.view(longest, batch, *x.shape[1:])
    return padded.transpose(0, 1) if batch_first else padded, lengths


def _cudnn(*args: Any) -> tuple[Tensor, ...]:
    """Return what torch's own rule for shapes gives, and what cuDNN keeps for backward.

    As a recording of an LSTM shows: of each layer its gates and cell for all tokens, between layers what one gives
    the next.
    """
    found = sys.modules["torch._meta_registrations"]._cudnn_rnn(*args)
    x = args[0]
    mode, width, _, layers = args[6:10]
    train, both = args[12:14]
    gates = {LSTM: 5, GRU: 4}.get(mode, 1)
    kept = x[..., 0].numel() * (2 if both else 1) * (layers * gates + layers - 1) * width
    return (
        *found[:3],
        x.new_empty(kept * x.itemsize if train else 0, dtype=torch.uint8),
        x.new_empty(0),
    )


def _cudnn_backward(
    x: Tensor,
    weights: list[Tensor],
    _stride: int,
    _buffer: Tensor,
    hidden: Tensor,
    cell: Any,
    *_: Any,
) -> Any:
    """Return gradients of the input, the states and the weights."""
    of_cell = x.new_empty(0) if cell is None else torch.empty_like(cell)
    return torch.empty_like(x), torch.empty_like(hidden), of_cell, [*map(torch.empty_like, weights)]


def _replace_autocast(library: torch.library.Library, stack: ExitStack) -> None:
    """Let autocast cast by CUDA's lists (column `autocast_gpu` of the operator table), in the CPU's place."""
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    parameters: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
    own_init = torch.autocast.__init__
    own_clear = torch.clear_autocast_cache
    own_dtype = torch.get_autocast_dtype

    def cast(value: Any, dtype: torch.dtype) -> Any:
        """Return a value in another type; a parameter is cast once, until the region ends."""
        if isinstance(value, list | tuple):
            return [cast(one, dtype) for one in value]
        if not isinstance(value, Tensor) or value.dtype == dtype or not _is_cast(value):
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        key = id(value), dtype
        if key not in parameters:
            parameters[key] = value, value.to(dtype)
        return parameters[key][1]

    def call(func: Any, policy: str, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            dtype = own_dtype("cpu") if policy == "16" else torch.float32
            if policy == "widest":
                found = {one.dtype for one in args if isinstance(one, Tensor) and _is_cast(one)}
                dtype = dtype if dtype in found or not found else next(iter(found))
            if policy == "32 result":
                names = [one.name for one in func._schema.arguments]
                if len(args) <= names.index("dtype"):
                    kwargs.setdefault("dtype", dtype)
            elif policy:
                args = tuple(cast(one, dtype) for one in args)
            return func(*args, **kwargs)

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type = "cpu"
            dtype = dtype or torch.float16
        own_init(self, device_type, dtype, *args, **kwargs)

    def clear() -> None:
        parameters.clear()
        own_clear()

    def of_cpu(own: Callable[..., Any]) -> Callable[..., Any]:
        return lambda device="cpu": own("cpu" if device == "cuda" else device)

    _put(stack, torch.autocast, __init__=init)
    answers = {
        name: of_cpu(getattr(torch, name)) for name in ("is_autocast_enabled", own_dtype.__name__)
    }
    _put(stack, torch, clear_autocast_cache=clear, **answers)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        here = has(name, "AutocastCPU")
        there = has(name, "AutocastCUDA")
        of_cudnn = name == "aten::_cudnn_rnn"  # in builds with cuDNN by a function of its own
        if name.startswith("aten::") and (here or there or of_cudnn):
            bare, _, overload = name.removeprefix("aten::").partition(".")
            func = getattr(getattr(torch.ops.aten, bare), overload or "default")
            policy = "16" if of_cudnn else operator(bare).autocast_gpu
            function = functools.partial(call, func, policy)
            if not (there or of_cudnn):  # what it calls may be in CUDA's lists
                function = torch.library.fallthrough_kernel
            library.impl(name.removeprefix("aten::"), function, "AutocastCPU", allow_override=True)


def _is_cast(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64
