"""A GPU that does not exist: a script's tensors have shapes and no values, its operators are noted and not run.

`emulated` replaces the GPU in this process. A tensor of the emulated GPU is a fake one with the CPU's dispatch keys
(a build of torch without CUDA has no others that run backward) whose `device` says `cuda:0`. What else is
replaced is in `emulate_torch`, what an operator takes on the GPU in `emulate_costs`.
"""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd import _enable_record_function
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from daydream.costs.devices import Device, find_device
from daydream.costs.workload.formulas import Argument, Shape
from daydream.world import Refused
from daydream.world.emulate_torch import reaching, replace

CPU = torch.device("cpu")
WORKSPACE = 64 << 20  # bytes that cuBLAS and cuBLASLt hold on a Hopper once a matrix was multiplied
BLOCK = 512  # bytes: what PyTorch's caching allocator gives is a multiple
RANGE = "emulated {}"  # with the number of the call
OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_")  # unread
YES = ("isfinite", "all", "equal", "allclose", "isclose", "eq", "ge", "le")  # flags that are true
NEEDS_VALUES = (
    "the script needs values of tensors, and those of an emulated GPU have none: the size of what "
    "{} gives follows from them. Leave that line out, or record the script on a GPU."
)
OWN_CLASSES = (Tensor, nn.Parameter, FakeTensor)


class Call(Struct):
    """An operator that ran on the emulated GPU.

    Attributes:
        name: `aten::mm`.
        arguments: sizes of each argument, as a recording has them: () for no tensor, a list for a list of tensors.
        dtypes: element types of the tensors among the arguments, `float32`; lists of tensors have one.
        results: sizes of the results.
        copies: `HtoD` or `DtoH` for what crosses the link to the CPU; `sync` for a wait without a copy.
        nbytes: of the tensors that it reads and writes, each once; 0 for a view and what only allocates.
        number_format: in which matrices are multiplied: `tf32` where 32 bits may be rounded to it.
        causal: whether it is attention that computes half of its scores.
    """

    name: str
    arguments: list[Argument]
    dtypes: list[str]
    results: list[Shape]
    copies: str = ""
    nbytes: int = 0
    number_format: str = ""
    causal: bool = False


class Emulation(TorchDispatchMode):
    """Notes what runs on the emulated GPU, and what is allocated there.

    Attributes:
        device: the emulated GPU.
        calls: operators that ran while a profiler recorded, in their order.
        memory: allocations and frees as (number of the next call, bytes, key of the storage).
        held_bytes: allocated now; `peak_bytes` at most, since `forget_peak`.
        compiled: whether the script compiles its model, which runs as it is.
        left_out: what the script asked for and is not emulated, in words.
        read: how often the program read a value that nobody knows.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.calls: list[Call] = []
        self.memory: list[tuple[int, int, int]] = []
        self.held_bytes = self.peak_bytes = WORKSPACE
        self.read = 0
        self.compiled = False
        self.left_out: dict[str, None] = {}
        # Numbers that the program filled tensors with.
        self.known: dict[int, bool | int | float] = {}
        self.crossing = ""  # the way that a tensor is being copied
        self.inside = False  # in an operator: torch's own code asks for devices, and gets the CPU
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._works: dict[int, Any] = {}  # collectives that were not waited for, by what they give
        self._storages: dict[int, tuple[int, int]] = {}  # bytes and key
        self._keys = 0
        aten = torch.ops.aten
        self._answers: dict[Any, Any] = {  # of operators whose result follows from values
            **dict.fromkeys((aten.equal.default, aten.allclose.default), lambda *_: True),
            aten._local_scalar_dense.default: self._value,
            aten._pack_padded_sequence.default: self._pack,
        }

    @property
    def observes(self) -> bool:
        """Whether calls are noted: while a profiler records."""
        return bool(torch.autograd.profiler._is_profiler_enabled)

    def on_gpu(self, tensor: Tensor) -> bool:
        """Return whether a tensor is of the emulated GPU."""
        return isinstance(tensor, FakeTensor) and _key(tensor) in self._storages

    def place(self, tensor: Tensor) -> None:
        """Count the memory of a tensor, which is of the emulated GPU from now on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._keys += 1
            self._storages[storage._cdata] = 0, self._keys
            weakref.finalize(storage, self._free, storage._cdata)
            self.resize(storage)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Take in that a storage has another size."""
        if storage._cdata in self._storages:
            before, key = self._storages[storage._cdata]
            nbytes = -(-storage.nbytes() // BLOCK) * BLOCK
            self._storages[storage._cdata] = nbytes, key
            self._move(nbytes - before, key)

    def _free(self, cdata: int) -> None:
        nbytes, key = self._storages.pop(cdata)
        self.known.pop(cdata, None)
        self._move(-nbytes, key)

    def _move(self, nbytes: int, key: int) -> None:
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        if self.observes and nbytes:
            self.memory.append((len(self.calls), nbytes, key))

    def forget_peak(self) -> None:
        """Let the peak be what is allocated now."""
        self.peak_bytes = self.held_bytes

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator on fake tensors, and note it."""
        kwargs = kwargs or {}
        if any(one not in OWN_CLASSES for one in classes):
            return NotImplemented  # DTensor and its kin: their parts come later
        if func is torch.ops.prim.device.default:
            return args[0].fake_device  # C++ asks for it all the time
        if self.inside or func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        if tensors and not any(isinstance(one, FakeTensor) for one in tensors):
            with _disable_current_modes():  # the program or a loader gave values: it is the CPU's
                return func(*args, **kwargs)
        if func in self._answers:
            return self._answers[func](*args)
        return self._called(func, args, kwargs, tensors)

    def _called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """Call an operator, and note it if it is the emulated GPU's."""
        there = any(map(self.on_gpu, tensors))
        name = func._schema.name
        node = torch._C._current_autograd_node()
        if kwargs.get("device") is not None:
            there = there or torch.device(kwargs["device"]).type == "cuda"
            kwargs = {**kwargs, "device": CPU}
        there = there or (not tensors and node is not None)
        if func is torch.ops.aten.add.Tensor and _gradients_meet(node, tensors):
            func = torch.ops.aten.add_.Tensor
        collective = func.namespace == "_c10d_functional"
        noted = (there or bool(self.crossing)) and not collective
        try:
            with self._running(noted):
                result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise Refused(NEEDS_VALUES.format(name)) from None
        results = [one for one in _tensors(result) if isinstance(one, FakeTensor)]
        for one in results:
            if func is torch.ops.aten.full.default and not one.dim():
                self.known[_key(one)] = args[1]
            elif func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.clone):
                if (known := self.known.get(_key(tensors[0]))) is not None:
                    self.known[_key(one)] = known
            elif one.dtype == torch.bool:
                one.flag = _flag(name.removeprefix("aten::"), tensors)
            if self.crossing == "HtoD" or (there and not self.crossing):
                self.place(one)
        if collective:
            self._communicate(name, args, results)
            return result
        if "convolution" in name and there:
            nbytes = _convolution_workspace(args, results, name)
            self._keys += 1
            self._move(nbytes, self._keys)
            self._move(-nbytes, self._keys)
        if noted and self.observes:
            self._note(func, args, kwargs, tensors, results)
        return result

    def _pack(self, padded: Tensor, lengths: Any, batch_first: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
        """Return packed sequences and how many there are at each time; unknown lengths are the longest."""
        batch, longest = padded.shape[:2] if batch_first else padded.shape[1::-1]
        if isinstance(lengths, FakeTensor):
            self.left_out[
                "lengths of packed sequences, which nobody knows: all are the longest"
            ] = None
            lengths = [longest] * batch
        sizes = reaching(lengths)
        with self:
            return padded.flatten(0, 1)[: sizes.sum().item()].clone(), sizes

    def _communicate(self, name: str, args: tuple[Any, ...], results: list[Tensor]) -> None:
        """Let the process group of a functional collective note it, and the wait for it."""
        if name.endswith("wait_tensor"):
            if work := self._works.pop(_key(args[0]), None):
                work.wait()
            return
        operation = re.sub(".*::|_(into_tensor|tensor|single)?(_coalesced)?_?$", "", name)
        group = torch.distributed.distributed_c10d._resolve_process_group(args[-1])
        asked = types.SimpleNamespace(asyncOp=True)
        work = group._answer(operation, _tensors(args), options=asked)
        self._works.update(dict.fromkeys(map(_key, results), work))

    @contextmanager
    def _running(self, target: bool) -> Iterator[None]:  # noqa: FBT001
        """Keep torch's own code out of a recording, and the device from it; with a range around a call."""
        name = RANGE.format(len(self.calls))
        with torch.profiler.record_function(name) if target and self.observes else nullcontext():
            self.inside = True
            _enable_record_function(False)
            try:
                yield
            finally:
                self.inside = False
                _enable_record_function(True)

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        results: list[Tensor],
    ) -> None:
        name = func._schema.name
        dtypes = [str(one.dtype).removeprefix("torch.") for one in tensors]
        moved = [*{id(one): one for one in tensors}.values(), *results]
        bare = name.rpartition("::")[2]
        if bare in OVERWRITES:
            moved = tensors
        elif re.match("new_|.*_like$", bare):
            moved = results
        if not func._schema.is_mutable:
            given = {*map(_key, tensors)}
            if "empty" in name or any(_key(one) in given for one in results):
                moved = []
        number_format = next(iter(dtypes), "")
        backends = torch.backends.cudnn if "conv" in name else torch.backends.cuda.matmul
        if number_format == "float32" and backends.allow_tf32:
            number_format = "tf32"
        named = zip((one.name for one in func._schema.arguments), args, strict=False)
        self.calls.append(
            Call(
                name,
                [_sizes(one) for one in args],
                dtypes,
                [tuple(one.shape) for one in results],
                self.crossing,
                sum(min(one.nbytes, one.untyped_storage().nbytes()) for one in moved),
                number_format,
                bool({**dict(named), **kwargs}.get("is_causal")),
            )
        )

    def wait(self, copies: str = "sync") -> None:
        """Note that the CPU waits for the GPU, for a number or for all its work."""
        with self._running(True):
            pass
        if self.observes:
            name = "aten::_local_scalar_dense" if copies == "DtoH" else "cudaDeviceSynchronize"
            self.calls.append(Call(name, [()], [], [], copies=copies, nbytes=8))

    def _value(self, tensor: Tensor) -> bool | int | float:
        """Return a plausible number where the program reads one."""
        if (known := self.known.get(_key(tensor))) is not None:
            return known
        if (constant := getattr(tensor, "constant", None)) is not None:
            with _disable_current_modes():
                return constant.item()
        if self.on_gpu(tensor):
            self.read += 1
            self.wait("DtoH")
        if tensor.dtype == torch.bool:
            return getattr(tensor, "flag", False)
        return 1.0 if tensor.dtype.is_floating_point else 1


def _flag(name: str, tensors: list[Tensor]) -> bool:
    """Return which truth of an operator is plausible: numbers are finite, masks let nothing be filled."""
    flags = [one.flag for one in tensors if hasattr(one, "flag")]
    if name in ("mul", "bitwise_and", "logical_and"):
        return all(flags)
    if name in ("logical_not", "bitwise_not"):
        return not any(flags)
    return name in YES or (name == "ne" and len(tensors) == 1)  # another number, not itself


def _gradients_meet(node: Any, tensors: list[Tensor]) -> bool:
    """Return whether a sum is the autograd engine's own, which it makes in place where tensors are no fakes."""
    return (
        node is not None
        and not torch.is_grad_enabled()
        and not isinstance(node, torch.autograd.function.BackwardCFunction)
        and len(tensors) == 2
        and tensors[0].shape == tensors[1].shape
    )


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _key(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from others."""
    return tensor.untyped_storage()._cdata


def _convolution_workspace(args: tuple[Any, ...], results: list[Tensor], name: str) -> int:
    """Return what cuDNN asks for beside the tensors of a convolution, bytes.

    In 32 bits a 3 x 3 of stride 1 is Winograd's on tiles of 4 x 4, each transformed to 6 x 6; all others have their
    input and result copied to channels last, if they are not so. As it was on an H100 and an H200 (cuDNN 9.19).
    """
    backward = "backward" in name
    x, weight, _, stride = args[backward : backward + 4]
    y = args[0] if backward else results[0]
    if weight.shape[1] == 1 or x.dim() != 4 or x.is_contiguous(memory_format=torch.channels_last):
        return 0
    plain = x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
    if plain and weight.shape[2:] == (3, 3) and set(stride) == {1}:
        tiles = sum(one[:, :, ::4, ::4].numel() for one in (x, y))
        return x.itemsize * 36 * (tiles + weight[..., 0, 0].numel())
    return int(x.nbytes + y.nbytes)


def _sizes(value: Any) -> Argument:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return [tuple(one.shape) if isinstance(one, Tensor) else () for one in value]
    return ()


@contextmanager
def emulated(device: str) -> Iterator[Emulation]:
    """Replace this process's GPU by an emulated one, `h100`; raise `NotApplicableError` for an unknown one.

    Example:
        with emulated("h100") as gpu:
            block = Block().to("cuda")
            x = torch.randn(8, 1024, device="cuda")
            with torch.profiler.profile():
                block(x).sum().backward()
            print(gpu.calls)
    """
    gpu = Emulation(find_device(device))
    with ExitStack() as stack:
        replace(gpu, stack)
        with gpu.fake, gpu:
            yield gpu
