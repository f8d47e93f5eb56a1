"""What device work does: element types and collectives, from arguments first and from kernel names last.

Which operators the name that Inductor gives a kernel tells of; layers, it does not tell.
"""

from __future__ import annotations

import re
from typing import Any

from daydream.lazy import regex

# Element types as torch's profiler and NCCL print them -> as torch names them.
WORDS = {
    "float": "float32", "double": "float64", "c10::half": "float16", "half": "float16",
    "c10::bfloat16": "bfloat16", "bfloat16": "bfloat16", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "c10::float8_e4m3fnuz": "float8_e4m3fnuz",
    "__half": "float16", "__half2": "float16", "half_t": "float16", "cutlass::half_t": "float16",
    "__nv_bfloat16": "bfloat16", "hip_bfloat16": "bfloat16", "bfloat16_t": "bfloat16",
    "cutlass::bfloat16_t": "bfloat16", "cutlass::tfloat32_t": "float32",
    "c10::float8_e5m2fnuz": "float8_e5m2fnuz", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32", "short int": "int16",
    "short": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8", "byte": "uint8",
    "bool": "bool", "float32": "float32", "float16": "float16", "float64": "float64", "int64": "int64",
    "int32": "int32", "int8": "int8", "uint8": "uint8",
}  # fmt: skip
ITEM_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2,
    "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
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
        regex(r"104HalfE|__half|half_t|(?<![a-z])f?f16|fp16|hgemm|_HHS_|_HSS_|_HH_|nvjet_(?:sm\d+_)?hsh"),
    ),
    ("float32", regex(r"tf32|tfloat32|(?:cutlass_80|ampere|sm80)\w*s1688")),  # TF32 keeps 32-bit data
    ("float16", regex(r"[hs]884|[hs]1688|[hs]16816")),  # tensor cores without a tag: half precision
    ("float64", regex(r"dgemm|_DB_|(?<![a-z])f64|fp64|[di]884")),
    ("float32", regex(r"sgemm|scudnn|(?<![a-z])f?f32|fp32|_SB_|_S_B")),
)  # fmt: skip

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
    r"(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|cross_device_reduce|multimem)|" + EXPERTS,
    re.IGNORECASE,
)
COLLECTIVE_SIGNS = (  # one of them is in each of these names, in small letters: most have none
    "ccl", "hcom_", "userbuffers_", "shmem", "symmetric_memory::", "reduce", "gather", "toall", "to_all",
    "multimem", "dispatch", "combine", "a2a",
)  # fmt: skip
COLLECTIVE_CALL = regex(r"^(record_param_comms$|nccl:|rccl:|gloo:|c10d::|symm_mem::)")
COLLECTIVES = (  # in this order: the longer name first
    ("all_to_all", regex(rf"all_?to_?all|{EXPERTS}", re.IGNORECASE)),
    ("reduce_scatter", regex(r"reduce_?scatter", re.IGNORECASE)),
    ("all_reduce", regex(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    ("all_gather", regex(r"all_?gather", re.IGNORECASE)),
    ("broadcast", regex(r"broadcast", re.IGNORECASE)),
    ("barrier", regex(r"barrier", re.IGNORECASE)),
    ("gather", regex(r"gather", re.IGNORECASE)),
    ("scatter", regex(r"scatter", re.IGNORECASE)),
    ("reduce", regex(r"reduce", re.IGNORECASE)),
    ("send_recv", regex(r"send_?recv", re.IGNORECASE)),
    ("send", regex(r"send", re.IGNORECASE)),
    ("recv", regex(r"recv", re.IGNORECASE)),
)


def dtype_of_word(word: str) -> str | None:
    """Return torch's name of an element type as a profiler prints it; None if it is no element type."""
    return WORDS.get(word.strip().lower())


def dtype_of_inputs(types: Any) -> str | None:
    """Return the first floating element type of an operator's inputs, else the first of any."""
    words = [word for word in types if isinstance(word, str)] if isinstance(types, list) else []
    known = [dtype for dtype in map(dtype_of_word, words) if dtype is not None]
    floating = [dtype for dtype in known if dtype.startswith(FLOATING)]
    return next(iter(floating or known), None)


def dtype_of_kernel(name: str) -> str | None:
    """Return the element type a kernel's name gives away, None if it gives none."""
    if NARROWEST[1].search(name):  # 4-bit values are multiplied with wider ones, in their units or widened
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
    return any(sign in small for sign in COLLECTIVE_SIGNS) and COLLECTIVE_KERNEL.search(name) is not None


def collective_of_name(name: str) -> str | None:
    """Return the collective a call, kernel or argument names: all_reduce, all_to_all, ..."""
    return next((collective for collective, pattern in COLLECTIVES if pattern.search(name)), None)


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
