"""What operators take on GPUs that others measured: from the nearest measured sizes.

The tables are those of the package `aiconfigurator-core` (the extra `gpus`), plain parquet of products, attention,
layers of experts and NCCL's collectives in inference; the package itself is never imported. Between sizes a
roofline is corrected as the nearest measured sizes say, so what lies outside the tables follows its slope.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from daydream.arrays import distinct_rows
from daydream.costs.devices import Device
from daydream.errors import INSTALL

LIBRARIES = "sglang", "trtllm", "vllm"  # that were measured, each in a folder
APART = 0.03  # by which a library's time may differ from a call's without counting much less
NEIGHBORS, ALONE = 4, 1e9  # a size that was measured itself counts alone
FIXED_NS = 2500.0  # of the roofline that is corrected: what the smallest rows take
# A half-width at 90%: so many times the neighbors' disagreement, at least `LEAST`, and more by each octave to
# the nearest of them. Held out, it covers 82 to 92% of products, of attention and experts more.
TIMES, LEAST, AN_OCTAVE = 2.0, 0.05, 0.05


class Table(NamedTuple):
    """Files of an operation below a GPU's folder, the column of its type, those of its sizes, rows that count."""

    files: str
    dtype: str
    sizes: tuple[str, ...]
    only: Mapping[str, object] = {}


FORMATS = {"float16": "bfloat16", "bfloat16": "bfloat16"}  # as fast as each other
COLLECTIVES = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
NCCL = Table("comm/nccl/*/nccl_perf", "nccl_dtype", ("num_gpus", "message_size"))
TABLES = {
    "gemm": Table("gemm/{}/*/gemm_perf", "gemm_dtype", ("m", "n", "k")),
    "attention": Table(
        "attention/{}/*/context_attention_perf",
        "attn_dtype",
        ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"),
        {"window_size": 0},
    ),
    "moe": Table(
        "moe/{}/*/moe_perf",
        "moe_dtype",
        ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
        {"moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced"},
    ),
    **{name: NCCL._replace(only={"op_name": name}) for name in COLLECTIVES},
    "all_to_all": NCCL._replace(only={"op_name": "alltoall"}),
}


def tables_folder() -> Path | None:
    """Return where the package's tables are, None where it is not installed."""
    found = find_spec("aiconfigurator_core")
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) / "systems" / "data" if places else None


def missing_tables(here: Device, there: Device) -> str:
    """Return how tables of both GPUs are installed, empty where they are, or where nobody measured one of them."""
    if not (here.tables and there.tables) or tables_folder() is not None:
        return ""
    return f"Products were measured on both GPUs; for a narrower range: {INSTALL.format('gpus')}."


def measured_ratio(
    here: Device,
    there: Device,
    operation: str,
    dtype: str,
    sizes: npt.ArrayLike,
    took_ns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return how many times as long calls take on another GPU, and by which part that may be off.

    It is the ratio of what the nearest measured sizes take on both. Libraries have ratios of their own: those
    count whose time here is near the call's.

    Args:
        here: the GPU that the calls ran on.
        there: the other one.
        operation: as of `measured_ns`.
        dtype: likewise.
        sizes: likewise.
        took_ns: what each call took here, ns, shape (calls,).

    Returns:
        ratios, and half-widths at 90%: float64, shape (calls,). None where one of the GPUs was not measured.
    """
    ratios, weights, spreads = [], [], []
    for library in ("*",) if operation in COLLECTIVES else LIBRARIES:
        before, after = (
            measured_ns(device, operation, dtype, sizes, library) for device in (here, there)
        )
        if before is not None and after is not None:
            ratios.append(np.log(after[0] / before[0]))
            weights.append((np.abs(np.log(before[0] / np.maximum(took_ns, 1))) + APART) ** -2)
            spreads.append(np.maximum(before[1], after[1]))
    if not ratios:
        return None
    middle = np.average(ratios, axis=0, weights=weights)
    apart = np.average((ratios - middle) ** 2, axis=0, weights=weights) ** 0.5
    spread = np.average(spreads, axis=0, weights=weights)
    return np.exp(middle), np.hypot(spread, TIMES * apart)


def measured_ns(
    device: Device, operation: str, dtype: str, sizes: npt.ArrayLike, library: str = "*"
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what calls of an operation take on a GPU, from its four nearest measured sizes.

    Args:
        device: a row of the table of GPUs.
        operation: `gemm` (rows, columns, summed over), `attention` (batch, length, heads, heads of keys, width;
            causal, forward), `moe` (tokens, width, inner width, experts a token, experts), or `all_reduce`,
            `all_gather`, `reduce_scatter`, `all_to_all` (GPUs in one node, elements in 16 bits).
        dtype: torch's name of a type, or `tf32`.
        sizes: of each call, int64, shape (calls, sizes).
        library: one of `LIBRARIES`; by default the one that serves each size best.

    Returns:
        ns, and by which part they may be off at 90%: float64, shape (calls,). None where nobody measured it:
        no package, no table of the GPU or of the type.
    """
    sizes = np.maximum(np.asarray(sizes, np.float64), 1.0)
    if dtype == "tf32" and operation == "gemm":  # half the rate and twice the bytes
        sizes, dtype = sizes * (1, 1, 2), "bfloat16"
    rows = _rows(device.tables, operation, dtype, library)
    if rows is None:
        return None
    known, off = np.log2(rows[0]), np.log(rows[1] / _roofline_ns(device, operation, dtype, rows[0]))
    first, which = distinct_rows(sizes.T)
    asked, found = np.log2(sizes[first]), np.zeros((2, len(first)))
    for place, each in enumerate(asked):
        away = np.abs(known - each).sum(axis=1)
        near = np.argpartition(away, NEIGHBORS)[:NEIGHBORS]
        weight = np.where(away[near] > 0, 1 / (away[near] + 0.1), ALONE)
        middle = np.average(off[near], weights=weight)
        apart = np.average((off[near] - middle) ** 2, weights=weight) ** 0.5
        found[:, place] = middle, max(TIMES * apart, LEAST) + AN_OCTAVE * away[near].min()
    middle, spread = found[:, which]
    return _roofline_ns(device, operation, dtype, sizes) * np.exp(middle), spread


@lru_cache(maxsize=32)
def _rows(
    gpu: str | None, operation: str, dtype: str, library: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the measured sizes and what each took, ns."""
    from pyarrow import dataset, scalar, schema

    at, table = tables_folder(), TABLES[operation]
    named = "fp8" if dtype.startswith("float8") else FORMATS.get(dtype)
    if at is None or gpu is None or named is None:
        return None
    wanted = {table.dtype: "half" if operation in COLLECTIVES else named, **table.only}
    columns = {**dict.fromkeys(table.sizes, "int64"), "latency": "float64"}
    kinds = {name: scalar(value).type for name, value in wanted.items()}
    files = sorted((at / gpu).glob(f"{table.files.format(library)}.parquet"))
    held = dataset.dataset(files, schema=schema(list({**columns, **kinds}.items())))
    for name, value in wanted.items():  # not all files have all columns
        held = held.filter((dataset.field(name) == value) | dataset.field(name).is_null())
    rows = held.to_table(list(columns)).group_by(table.sizes).aggregate([("latency", "min")])
    if len(rows) <= NEIGHBORS:
        return None
    sizes = np.stack([rows[name].to_numpy() for name in table.sizes], axis=1).astype(float)
    return sizes, rows["latency_min"].to_numpy() * 1e6  # ms


def _roofline_ns(device: Device, operation: str, dtype: str, sizes: np.ndarray) -> np.ndarray:
    """Return what calls take at the peaks, with a fixed cost."""
    number_format = "float8" if dtype.startswith("float8") else "bfloat16"
    width, columns = 1 if number_format == "float8" else 2, sizes.T
    bandwidth = device.bandwidth
    if operation in COLLECTIVES:
        gpus, elements = columns
        flop, nbytes = 0.0, 2 * elements * (gpus - 1) / gpus
        bandwidth = (device.link or 2 * device.pcie) / 2
    elif operation == "gemm":
        m, n, k = columns
        flop, nbytes = 2 * m * n * k, width * (m * k + k * n) + 2 * m * n
    elif operation == "attention":
        batch, length, heads, of_keys, head = columns
        flop = 2 * batch * heads * length**2 * head
        nbytes = 2 * width * batch * length * head * (heads + of_keys)
    else:
        tokens, hidden, inner, chosen, experts = columns
        flop = 6 * tokens * chosen * hidden * inner
        nbytes = width * (
            3 * hidden * inner * np.minimum(experts, tokens * chosen) + 2 * tokens * hidden
        )
    return FIXED_NS + np.maximum(flop / device.peak(number_format), nbytes / bandwidth)
