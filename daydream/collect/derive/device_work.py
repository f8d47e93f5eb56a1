"""What launched device work: the calls in their order, by correlation alone, before anything is derived.

What device rows do, written into a recording's columns: collectives, element types, launch grids.

What device work does: element types and collectives, from arguments first and from kernel names last.

Which operators the name that Inductor gives a kernel tells of; layers, it does not tell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from daydream.arrays import combinations, places
from daydream.collect.derive.nesting import link_launches
from daydream.collect.derive.recording import ROUNDING_NS, Recording
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.schema import DEVICE_KINDS, ITEM_BYTES, LARGEST_AMOUNT, UNKNOWN

# What C++ calls element types, without what the libraries put around a name -> as torch names them.
WORDS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "tfloat32": "float32",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bf16": "bfloat16",
}
AROUND = regex(r"^(c10::|cutlass::|__nv_|hip_|__)|(?<=half)2$|(?<=\d\d|lf)_t$| int$")
FLOATING = ("float", "bfloat", "complex")
WIDE = ("float32", "float64")

# Element types in kernel names. A C++ type tells most: that of the lambda a kernel applies, else
# the first one named (results and inputs stand before accumulators).
LAMBDA_TYPE = regex(r"\{lambda\(([\w: ]+?)[,)]")
TEMPLATE_TYPE = regex(
    r"\b(c10::BFloat16|c10::Half|c10::Float8_e\w+|__nv_bfloat16|hip_bfloat16|__half2?|cutlass::half_t|"
    r"cutlass::bfloat16_t|cutlass::tfloat32_t|half_t|bfloat16_t|float|double)\b"
)
FUNCTOR_TYPE = regex(r"(?:Functor|functor|Op)\w*<(long|int|short|signed char|unsigned char|bool)\b")
# Else the tags of matrix libraries and compilers, the first that is found. cuBLAS's nvjet names types by
# letters: one model recorded in both types has `tst` in bfloat16, `hsh` in float16.
NARROWEST = ("float4_e2m1", regex(r"(?i)(mx|nv)fp4|e2m1|(?<![a-z0-9])fp4"))
DTYPE_TAGS = (
    ("float8_e4m3fn", regex(r"e4m3|_F8|fp8")),
    ("float8_e5m2", regex(r"e5m2|_B8_")),
    ("bfloat16", regex(r"BFloat16|bfloat16|bf16|_BBS_|_BSS_|_BB_|nvjet_(?:sm\d+_)?tst")),
    (
        "float16",
        regex(
            r"104HalfE|__half|half_t|(?<![a-z])f?f16|fp16|hgemm|_HHS_|_HSS_|_HH_|nvjet_(?:sm\d+_)?hsh"
        ),
    ),
    (
        "float32",
        regex(r"tf32|tfloat32|(?:cutlass_80|ampere|sm80)\w*s1688"),
    ),  # TF32 keeps 32-bit data
    ("float16", regex(r"[hs]884|[hs]1688|[hs]16816")),  # tensor cores without a tag: half precision
    ("float64", regex(r"dgemm|_DB_|(?<![a-z])f64|fp64|[di]884")),
    ("float32", regex(r"sgemm|scudnn|(?<![a-z])f?f32|fp32|_SB_|_S_B")),
)

# Kernels that communicate: those of the libraries for it, by what they begin with or the namespace they are
# in, and those that read and write the memory of other devices themselves, by the collective that they name.
# Symmetric memory and servers' own reductions (one shot, two shots, multimem) are of the second sort, as are
# exchanges of tokens between experts (DeepEP, MORI, pplx), which dispatch and combine across GPUs or nodes.
EXPERTS = (
    r"\b(intra|inter)node(_ll)?::\w*(dispatch|combine)|\bEp(Dispatch|Combine)|"
    r"\bpplx\b.*(dispatch|combine)|\bmoe_?a2a|moe_?all_?to_?all"
)
COLLECTIVE_KERNEL = regex(
    r"^(void )?(nccl|rccl|mscclKernel|msccl_|mscclpp|hcom_|oneccl|k?userbuffers_)|\b(nvshmem|rocshmem)|"
    r"symmetric_memory::|"
    r"^(?!triton_)(?!.*(warp|block|group|thread|sub)_?all_?reduce)(?!.*gemm).*"  # those stay within a device
    r"(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|cross_device_reduce|multimem)|"
    + EXPERTS,
    re.IGNORECASE,
)
COLLECTIVE_SIGNS = (  # one of them is in each of these names, in small letters: most have none
    "ccl",
    "hcom_",
    "userbuffers_",
    "shmem",
    "symmetric_memory::",
    "reduce",
    "gather",
    "toall",
    "to_all",
    "multimem",
    "dispatch",
    "combine",
    "a2a",
)
COLLECTIVE_CALL = regex(r"^(record_param_comms$|nccl:|rccl:|gloo:|c10d::|symm_mem::)")
COLLECTIVES = {  # in this order: the longer name first
    name: regex(pattern or name.replace("_", "_?"), re.IGNORECASE)
    for name, pattern in {
        "all_to_all": rf"all_?to_?all|{EXPERTS}",
        "reduce_scatter": "",
        "all_reduce": r"all_?reduce|cross_device_reduce",
        "all_gather": "",
        "broadcast": "",
        "barrier": "",
        "gather": "",
        "scatter": "",
        "reduce": "",
        "send_recv": "",
        "send": "",
        "recv": "",
    }.items()
}


def dtype_of_word(word: str) -> str | None:
    """Return torch's name of an element type as a profiler prints it; None if it is no element type."""
    plain = AROUND.sub("", word.strip().lower())
    return WORDS.get(plain, plain if plain in ITEM_BYTES else None)


def dtype_of_inputs(types: Any) -> str | None:
    """Return the first floating element type of an operator's inputs, else the first of any."""
    words = [word for word in types if isinstance(word, str)] if isinstance(types, list) else []
    known = [dtype for dtype in map(dtype_of_word, words) if dtype is not None]
    floating = [dtype for dtype in known if dtype.startswith(FLOATING)]
    return next(iter(floating or known), None)


def dtype_of_kernel(name: str) -> str | None:
    """Return the element type a kernel's name gives away, None if it gives none."""
    if NARROWEST[1].search(
        name
    ):  # 4-bit values are multiplied with wider ones, in their units or widened
        return NARROWEST[0]
    applied = [dtype_of_word(word) for word in LAMBDA_TYPE.findall(name)]
    typed = applied + [dtype_of_word(word) for word in TEMPLATE_TYPE.findall(name)]
    narrow = next((dtype for dtype, pattern in DTYPE_TAGS[:2] if pattern.search(name)), None)
    for dtype in typed:  # an integer in a lambda is more often an index than an element
        if dtype is not None and dtype.startswith(FLOATING):  # 32 bits beside 8 are scales and sums
            return narrow or dtype if dtype in WIDE else dtype
    for dtype, pattern in DTYPE_TAGS:
        if pattern.search(name):
            return dtype
    counted = [dtype_of_word(word) for word in FUNCTOR_TYPE.findall(name)] + applied
    return next((dtype for dtype in counted if dtype is not None), None)


def communicates(name: str) -> bool:
    """Return whether a kernel of this name communicates with other devices."""
    small = name.lower()
    return (
        any(sign in small for sign in COLLECTIVE_SIGNS)
        and COLLECTIVE_KERNEL.search(name) is not None
    )


@cache
def collective_of_name(name: str) -> str | None:
    """Return the collective a call, kernel or argument names: all_reduce, all_to_all, ..."""
    return next(
        (collective for collective, pattern in COLLECTIVES.items() if pattern.search(name)), None
    )


def elements_of_dims(dims: Any) -> int | None:
    """Return the elements of all tensors in a recorded `Input Dims`, None if there are none."""
    sizes = _sizes(dims, 0)
    return sum(sizes) if sizes else None


def _sizes(dims: Any, depth: int) -> list[int]:
    if not isinstance(dims, list) or not dims or depth > 3:
        return []
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= max(size, 0)
        return [product]
    return [size for part in dims for size in _sizes(part, depth + 1)]


FUSED = regex(r"(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_(\w+?)(?:_\d+)?(?::\d+)?")
PLACE = regex(r":\d+$")


def operators_of_kernel(name: str) -> list[str]:
    """Return the operators in a kernel's name, sorted, as the compiler writes them; at least one.

    `triton_poi_fused_add_relu_3` is `add_relu`, as names of operators may hold underscores themselves;
    `extern_kernels.mm:4` is `aten::mm`.
    """
    fused = FUSED.fullmatch(name)
    if fused:
        return [fused.group(1)]
    plain = PLACE.sub("", name)
    parts = plain.removeprefix("torch.ops.").split(".")
    if parts[0] == "extern_kernels" and len(parts) > 1:
        return [f"aten::{parts[1].removeprefix('bias_')}"]
    return [f"{parts[0]}::{parts[1]}" if len(parts) > 1 else plain]


@dataclass(frozen=True)
class Launches:
    """Launch calls in the order they began: what each launched (a code), when, and its kernels' time."""

    symbols: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    work_ns: np.ndarray
    thread: np.ndarray

    def of(self, threads: np.ndarray) -> Launches:
        """Return the calls of some threads."""
        mine = np.isin(self.thread, threads)
        symbols = np.unique(self.symbols[mine], return_inverse=True)[1].astype(np.int32)
        return Launches(
            symbols,
            self.start_ns[mine],
            self.end_ns[mine],
            self.work_ns[mine],
            self.thread[mine],
        )


def linked_calls(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Return the device rows whose launch call is known, and the calls, in the same order."""
    launch = link_launches(recording)
    device = np.flatnonzero(launch >= 0)
    return device, launch[device]


def is_device_alone(recording: Recording) -> bool:
    """Return whether a recording holds device work, but no operator and no call that could launch it."""
    return bool(recording.is_kind(*DEVICE_KINDS).any()) and not bool(
        recording.is_kind("operator", "runtime").any()
    )


def read_launches(recording: Recording) -> Launches:
    """Return the launch calls of a recording; where it has no calls at all, the device work itself.

    Without device work the outermost operators are what the program runs, one after another.

    A call with several device rows, a graph launch, counts once under the call's own
    name: profilers record a varying part of a graph's nodes. Of several ranks, the one
    with most launches is taken.
    """
    lanes = recording.threads
    names = recording["name"].astype(np.int64)
    if recording.is_kind(*DEVICE_KINDS).any() and not is_device_alone(recording):
        device, host = linked_calls(recording)
        rows, first, which, several = np.unique(
            host,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        # Copies weigh nothing beside kernels: the upload of a model's weights can take longer than the steps.
        kernels = recording.is_kind("kernel", "collective")[device]
        works = recording["duration_ns"][device] * (kernels | ~kernels.any())
        work_ns = np.bincount(which, works, len(rows)).astype(np.int64)
        codes = np.where(
            several == 1, names[device[first]], len(recording.text("name")) + names[rows]
        )
    else:
        rows = outermost(recording)
        if is_device_alone(recording):
            rows = np.flatnonzero(recording.is_kind(*DEVICE_KINDS))
            pairs = np.stack([recording["device"], recording["stream"]])
            lanes = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
        codes = names[rows]
        work_ns = recording["duration_ns"][rows].astype(np.int64)
    start_ns = recording["start_ns"][rows].astype(np.int64)
    order = np.argsort(start_ns, kind="stable")
    ranks = recording["rank"][rows[order]]
    if len(order):
        each, counts = np.unique(ranks, return_counts=True)
        order = order[ranks == each[counts.argmax()]]
    symbols = np.unique(codes[order], return_inverse=True)[1].astype(np.int32)
    end_ns = start_ns + recording["duration_ns"][rows]
    return Launches(
        symbols,
        start_ns[order],
        end_ns[order],
        work_ns[order],
        lanes[rows[order]],
    )


def outermost(recording: Recording) -> np.ndarray:
    """Return the operators that lie in no other operator of their thread."""
    rows = np.flatnonzero(recording.is_kind("operator"))
    threads = recording.threads.astype(np.int64)[rows]
    start, duration = (
        recording[name].astype(np.int64)[rows] for name in ("start_ns", "duration_ns")
    )
    order = np.lexsort((-duration, start, threads))
    apart = threads[order] * int(
        (start + duration).max(initial=0) + 1
    )  # each thread behind the one before
    reached = np.maximum.accumulate(apart + (start + duration)[order])
    return rows[order[np.append(True, (apart + start[order])[1:] >= reached[:-1])[: len(rows)]]]


STREAM_WAIT = regex(r"StreamSynchronize")
DEVICE_WAIT = regex(r"DeviceSynchronize|CtxSynchronize")
FEW_LAUNCHES = 0.01  # whose calls may be others than their ids tell
STRAY_NS = 20_000  # a synchronize returned 8 us before the last kernel ended (MI300X)
SOME_KERNELS = 10
SHORTEST_NS = 100  # no GPU runs a kernel in less, on average
TOO_SHORT = (
    "its kernels last less than 0.1 us on average, which is too short: times are in another unit"
)
TOO_LONG = (
    "most device work lasts longer than its streams have room for: times are in several units"
)


def on_one_clock(recording: Recording, launch: np.ndarray) -> bool:
    """Move device rows whose clock was not the CPU's, with a note; return whether any was moved.

    Work begins after the call that launches it began, and ends before a call returns that waits for it. Where
    one of the two is broken by more than clocks stray, the device's times are moved by just so much, unless
    that would break the other one.
    """
    work = np.flatnonzero(launch >= 0)
    calls = launch[work]
    start = recording["start_ns"].astype(np.int64)
    end = start + recording["duration_ns"]
    if not len(work):
        return False
    latency = int(np.quantile(start[work] - start[calls], FEW_LAUNCHES))
    # What a copy's call is followed by on its thread waits for the copy.
    runtime = np.flatnonzero(recording.is_kind("runtime"))
    runtime = runtime[np.lexsort((start[runtime], recording.threads[runtime]))]
    copied = np.full(len(recording), UNKNOWN)
    copies = recording.is_kind("memcpy")[work]
    copied[calls[copies]] = work[copies]
    waits = recording.named(STREAM_WAIT)[runtime[1:]] & (copied[runtime[:-1]] >= 0)
    waits &= recording.threads[runtime[1:]] == recording.threads[runtime[:-1]]
    rooms = end[runtime[1:][waits]] - end[copied[runtime[:-1][waits]]]
    if (
        len(np.unique(recording["device"][work])) == 1
    ):  # else it may be another one that a call waits for
        order = np.argsort(start[calls], kind="stable")
        ended = np.append(0, np.maximum.accumulate(end[work[order]]))
        all_work = np.flatnonzero(recording.named(DEVICE_WAIT, "runtime"))
        before = ended[np.searchsorted(start[calls[order]], start[all_work])]
        rooms = np.append(rooms, end[all_work] - before)
    room = int(rooms.min(initial=start[-1]))
    if latency < -STRAY_NS and room + latency >= -STRAY_NS:
        moved = -latency
    elif room < -STRAY_NS and latency + room >= 0:
        moved = room
    else:
        return False
    start += moved * recording.is_kind(*DEVICE_KINDS)
    recording.columns["start_ns"] = np.maximum(start, 0)
    recording.note(
        f"The device's clock was {abs(moved) / 1e3:,.1f} us {'ahead of' if moved < 0 else 'behind'} the CPU's, as "
        "its work and the calls that launch it or wait for it tell: its times were moved by that."
    )
    return True


def end_before_next(recording: Recording, launch: np.ndarray) -> str | None:
    """Cut device rows where the next one of their stream begins, and say of how many.

    A stream runs one after the other: profilers have written durations that reach over many rows. On Hopper
    the next kernel may begin early (programmatic dependent launch: by 1.3 to 2.3 us on public H100
    recordings) and waits for the end of this one: what the two took together stays. The parts of a graph, or
    of one call, may run side by side.

    Returns:
        why the durations of device work cannot be what it took; None if they can.
    """
    rows = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (recording["graph_id"] < 0))
    lane, _ = combinations([recording[name][rows] for name in ("rank", "device", "stream")])
    order = np.lexsort((recording["start_ns"][rows], lane))
    rows = rows[order]
    lane = lane[order]
    this = rows[:-1]
    following = rows[1:]
    duration = recording["duration_ns"]
    room = (recording["start_ns"][following] - recording["start_ns"][this]).astype(np.int64)
    late = (lane[1:] == lane[:-1]) & (room > 0) & (duration[this] - room > ROUNDING_NS)
    late &= (launch[this] < 0) | (launch[this] != launch[following])
    kernels = duration[recording.is_kind("kernel")]
    if len(kernels) >= SOME_KERNELS and kernels.mean() < SHORTEST_NS:
        return TOO_SHORT
    if not late.any():
        return None
    over = int((duration[this] - room)[late].sum())
    duration[this[late]] = room[late]
    recording.note(
        f"{counted(int(late.sum()), 'device task')} lasted into the next of the same stream, by "
        f"{over / 1e6:,.3f} ms in total, and end where that begins."
    )
    return TOO_LONG if 2 * late.sum() > len(rows) and over > duration[rows].sum() else None


GRIDS_IN_BLOCKS = "grids_in_blocks"  # metadata of a recording whose importer has counted blocks
WORK_ITEM_LAUNCHES = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")


def fill_collectives(
    recording: Recording, parent: np.ndarray, op_row: np.ndarray, launch: np.ndarray
) -> None:
    """Make communication kernels rows of kind `collective`, with operation, elements, bytes, type and group.

    From the kernel's own arguments, else from the communication calls around its launch, the
    innermost first, and the operation at last from the kernel's name.
    """
    if "collective" in recording.columns:
        recording.texts["collective"] = [
            collective_of_name(text) or text for text in recording.text("collective")
        ]
    rows = np.flatnonzero(recording.is_kind("kernel") & recording.whose_name(communicates))
    if not len(rows):
        return
    is_call = recording.named(COLLECTIVE_CALL)
    names = recording.texts_of("name", rows)
    operation = recording.texts_of("collective", rows)
    dtype = recording.texts_of("dtype", rows)
    group = recording.texts_of("group", rows)
    elements = recording["elements"][rows].tolist()
    for index, row in enumerate(rows.tolist()):
        calls = _calls_around(int(launch[row]), parent, is_call)
        if op_row[row] >= 0:
            calls += [
                call
                for call in _calls_around(int(op_row[row]), parent, is_call)
                if call not in calls
            ]
        for call in calls:
            here = [call]
            operation[index] = operation[index] or recording.texts_of("collective", here)[0]
            operation[index] = operation[index] or collective_of_name(
                recording.texts_of("name", here)[0] or ""
            )
            if elements[index] < 0 and (count := _elements(recording, call)) >= 0:
                elements[index] = count
                dtype[index] = recording.texts_of("dtype", here)[0] or dtype[index]
            dtype[index] = dtype[index] or recording.texts_of("dtype", here)[0]
            group[index] = group[index] or recording.texts_of("group", here)[0]
        operation[index] = operation[index] or collective_of_name(names[index] or "")
    recording.set_texts("kind", rows, ["collective"] * len(rows))
    recording.set_texts("collective", rows, operation)
    recording.set_texts("dtype", rows, dtype)
    recording.set_texts("group", rows, group)
    recording.set_numbers("elements", rows, np.array(elements))
    nbytes = np.array(
        [
            count * ITEM_BYTES[text]
            if 0 <= count <= LARGEST_AMOUNT // 16 and text in ITEM_BYTES
            else UNKNOWN
            for count, text in zip(elements, dtype, strict=True)
        ]
    )
    recording.set_numbers("bytes", rows, nbytes)


def _calls_around(row: int, parent: np.ndarray, is_call: np.ndarray) -> list[int]:
    found = []
    while row >= 0:
        if is_call[row]:
            found.append(row)
        row = int(parent[row])
    return found


def _elements(recording: Recording, call: int) -> int:
    """Return the elements a communication call moves: as it says, else by the sizes of its inputs."""
    said = int(recording["elements"][call])
    if said >= 0:
        return said
    shapes = recording.texts_of("shapes", [call])[0]
    count = elements_of_dims(json.loads(shapes)) if shapes else None
    return UNKNOWN if count is None else min(count, 2**62)


def fill_types(recording: Recording, op_row: np.ndarray, device: np.ndarray) -> None:
    """Give device rows the element type of their operator's inputs, else the one that their name shows."""
    dtype = np.asarray(recording["dtype"])
    rows = np.flatnonzero(device & (dtype < 0) & (op_row >= 0))
    if len(rows):
        recording.set_codes("dtype", rows, dtype[op_row[rows]])
    rows = np.flatnonzero(recording.is_kind("kernel") & (recording["dtype"] < 0))
    names, which = places(recording["name"][rows])
    found = [dtype_of_kernel(recording.text("name")[code]) for code in names.tolist()]
    for text in sorted({text for text in found if text}):
        members = rows[np.array([one == text for one in found], bool)[which]]
        recording.set_texts("dtype", members, [text])


def fill_grids(recording: Recording, launch: np.ndarray) -> None:
    """Give device rows the grid, block and bytes that only their launching call carries.

    `hipExtModuleLaunchKernel` counts its grid in work-items, all other launches in blocks;
    the columns hold blocks.
    """
    linked = np.flatnonzero(launch >= 0)
    calls = recording.is_kind("runtime")
    for name, kinds in (
        ("grid", ("kernel",)),
        ("block", ("kernel",)),
        ("bytes", ("memcpy", "memset")),
    ):
        if name not in recording.columns:
            continue
        column = recording.columns[name].copy()
        missing = linked[(column[linked] < 0) & recording.is_kind(*kinds)[linked]]
        column[missing] = column[launch[missing]]
        column[calls] = UNKNOWN
        recording.columns[name] = column
    if recording.metadata.pop(GRIDS_IN_BLOCKS, False):
        return
    codes = [code for code, text in enumerate(recording.text("name")) if text in WORK_ITEM_LAUNCHES]
    rows = linked[np.isin(recording["name"][launch[linked]], codes)]
    rows = rows[(recording["grid"][rows] >= 0) & (recording["block"][rows] >= 0)]
    if not len(rows):
        return
    pairs = np.stack([recording["grid"][rows], recording["block"][rows]]).astype(np.int64)
    pairs, which = np.unique(pairs, axis=1, return_inverse=True)
    grids = recording.text("grid")
    blocks = recording.text("block")
    for index, (grid, block) in enumerate(pairs.T.tolist()):
        items = [int(part) for part in grids[grid].split(",")]
        threads = [max(int(part), 1) for part in blocks[block].split(",")]
        text = ",".join(str(-(-count // size)) for count, size in zip(items, threads, strict=True))
        recording.set_texts("grid", rows[which.reshape(-1) == index], [text])
