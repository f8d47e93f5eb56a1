"""What was held before the recording began, and no event tells.

Allocators report what happens, not what lies there. Parameters, optimizer state and buckets come from the
run's metadata. An update of torch keeps so many values of each parameter that it trains, each in a tensor of the
parameter's size, from its first step on; a parameter that is trained gets a gradient of its size in each
backward pass. PyTorch's CPU allocator does not even report when memory goes that it did not see come: of a
recording on the CPU, what the first step holds from the step before is taken to be what the second step
holds from the first one.

Parameters read off the shapes of operators, and the workspace of cuBLAS, where no metadata lists them.

torch's operators have their weights at known places among their arguments (`native_functions.yaml`). Each
call of one forward pass is taken to have its own, unless its layer tells that it is the same one. No tensor holds
the memory that cuBLAS, or hipBLAS, keeps for itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from daydream.arrays import unique
from daydream.costs.operators import Operator, operator
from daydream.graph.calls import enclosing
from daydream.memory.allocations import (
    BEFORE,
    GRANULE,
    STEP,
    Allocations,
    Row,
    freed,
    is_kind,
    of_rank,
    on_device,
    rounded,
)
from daydream.memory.enclosing import arguments_of, rows_that
from daydream.model.optimizers import states_of
from daydream.text import bytes_text
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import ITEM_BYTES, PHASES, UNKNOWN
from daydream.trace.trace import Trace

MIB = 2**20
# getChosenWorkspaceSize of PyTorch 2.6, aten/src/ATen/cuda/CublasHandlePool.cpp: bytes by vendor and compute
# capability. CUBLAS_WORKSPACE_CONFIG, which changes them, is in no trace.
BYTES = {("cuda", (9, 0)): 32 * MIB, ("rocm", (9, 4)): 128 * MIB, ("rocm", (9, 5)): 128 * MIB}
OTHERS = {"cuda": (2 * 4096 + 8 * 16) * 1024, "rocm": 32 * MIB}


def workspaces(trace: Trace, rank: int, device: int) -> list[int]:
    """Return the bytes of each workspace that matrix products of a rank need: one a thread that runs them.

    A workspace belongs to a handle, and each thread has its own: that of the backward pass, too.
    """
    mine = rows_that(trace, lambda name: operator(name).family == "matmul") & trace.is_kind(
        "operator"
    )
    mine &= np.maximum(trace["rank"], 0) == rank
    threads = len(unique(trace["tid"][mine]))
    described = description_of(trace, rank, device)
    vendor = str(trace.metadata.get("vendor"))
    capability = (described.get("compute_major", 0), described.get("compute_minor", 0))
    nbytes = BYTES.get((vendor, capability), OTHERS.get(vendor, 0))
    return [nbytes] * threads if nbytes and described else []


def description_of(trace: Trace, rank: int, device: int) -> dict[str, Any]:
    """Return what the metadata says of a rank's device; empty if nothing."""
    for place, each in enumerate(trace.of_rank("devices", rank) or []):
        if (place if each.get("id") is None else each["id"]) == device:
            return dict(each)
    return {}


def device_bytes(trace: Trace, rank: int, device: int) -> int | None:
    """Return how much memory a device has, None if the trace does not tell."""
    return description_of(trace, rank, device).get("memory_bytes") or None


def weights_of(trace: Trace, rank: int) -> list[dict[str, Any]]:
    """Return what the forward operators of one step show: `shape`, `dtype`, `layer` and `name` of each.

    In the order of use. Of a call within another of the same kind (autocast repeats it) the outer one counts.
    """
    names = trace.text("name")
    owns = rows_that(trace, lambda name: _owns_parameters(operator(name)))
    owns &= trace.is_kind("operator") & (np.maximum(trace["rank"], 0) == rank)
    rows = np.flatnonzero(owns & (trace["shapes"] >= 0))
    forward = rows[trace["phase"][rows] == trace.code("phase", "forward")]
    rows = forward if len(forward) else rows
    step = trace["step"][rows]
    rows = rows[step == step[-1:]]  # the last step: the first may be cut
    own = np.zeros(len(trace), bool)
    own[rows] = True
    rows = rows[enclosing(trace["parent"], own, trace["parent"][rows], inner=True) < 0]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows.tolist():
        name = names[trace["name"][row]]
        layer, dtype = (_text(trace, column, row) for column in ("layer", "dtype"))
        arguments = arguments_of(trace, row)
        op = operator(name)
        for place in op.parameters:
            shape = arguments[place] if place < len(arguments) else ()
            if isinstance(shape, tuple) and shape:
                found.setdefault((row if layer is None else layer, name, place), {
                    "name": f"{layer or name} {place}", "layer": layer, "shape": list(shape), "op": name,
                    "dtype": dtype or "", "requires_grad": op.roles[place] != "statistic",
                })  # fmt: skip
    return list(found.values())


def _owns_parameters(op: Operator) -> bool:
    """Return whether modules call it with their parameters; the work is within, but in `embedding`."""
    calls_others = "composite" in op.traits and "loss" not in op.traits
    return bool(op.parameters) and (calls_others or op.name == "embedding")


def not_counted(trace: Trace, rank: int, device: int) -> list[str]:
    """Return a note on a GPU of which neither totals nor metadata say what it held before; none on a CPU."""
    if device < 0:
        return []
    shown = sum(
        prod(each["shape"]) * ITEM_BYTES.get(each["dtype"], 0) for each in weights_of(trace, rank)
    )
    least = f" Shapes of operators show {bytes_text(shown)} of parameters." if shown else ""
    said = (
        f"What GPU {device} held before the recording is not known and not counted: the trace has neither "
        f"totals nor a list of parameters.{least} Kept gradients, optimizer state and buckets come on top."
    )
    return [said]


def without_head(weights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return them without the last layer's weight if an embedding has its shape: language models share it."""
    embeddings = [each["shape"] for each in weights if each["op"].startswith("aten::embedding")]
    linear = [each for each in weights if each["op"] == "aten::linear" and len(each["shape"]) > 1]
    shared = linear[-1] if linear and linear[-1]["shape"] in embeddings else None
    return [each for each in weights if each is not shared]


def _text(trace: Trace, column: str, row: int) -> str | None:
    code = int(trace[column][row])
    return trace.text(column)[code] if code >= 0 else None


def add_from_the_step_before(held: Allocations, rank: int) -> None:
    """Add what the first recorded step holds from the one before it, as the second does from the first."""
    on = on_device(held, rank, HOST)
    first, *others = unique(held["step"][on & (held["step"] >= 0)]).tolist() or [UNKNOWN]
    if not others or str(held.trace.metadata["steps"][first].get("name", "")).endswith("#0"):
        return
    rows = np.flatnonzero(on & (held["step"] == first) & (held["end_step"] == others[0]))
    recorded = on & (held["begin"] > BEFORE)
    asked, again = (
        np.sort(held["begin"][recorded & (held["step"] == step)]) for step in (first, others[0])
    )
    # It goes before the nth request of its step.
    nth = np.minimum(np.searchsorted(again, held["end"][rows]), len(asked) - 1)
    added = {name: column[rows] for name, column in held.columns.items()}
    added |= {"begin": np.full(len(rows), BEFORE), "end": asked[nth] - STEP}
    for name in ("begin_row", "end_row", "step", "phase"):
        added[name] = np.full(len(rows), UNKNOWN)
    added["end_step"] = np.full(len(rows), first)
    held.append(added)


def by_kind(held: Allocations, rank: int, device: int, told: list[Row]) -> list[Row]:
    """Return the state that an optimizer that the trace does not describe keeps, a row a tensor.

    Args:
        held: the allocations.
        rank: of the process.
        device: index of the GPU.
        told: what is known to be held there before the recording: parameters.

    Returns:
        Rows; none where the optimizer is not known, keeps nothing, or shares its state among ranks.
    """
    states = states_of(held.trace)
    if not states or is_kind(held, "shard").any():
        return []
    owners: dict[int, list[int]] = defaultdict(list)
    for kind, nbytes, parameter in reversed(told):
        if kind == "parameter" and held.parameters[rank][parameter].get("requires_grad", True):
            owners[nbytes].append(parameter)
    mine = np.flatnonzero(
        on_device(held, rank, device) & is_kind(held, "gradient") & (held["begin"] > BEFORE)
    )
    if not len(mine):  # those that were there are filled
        return [
            ("optimizer_state", size, one)
            for size in owners
            for one in owners[size]
            for _ in range(states)
        ]
    most = int(np.argmax(np.bincount(held["step"][mine] + 1, held["bytes"][mine]))) - 1
    rows = []
    for size in held["bytes"][mine[held["step"][mine] == most]].tolist():
        owner = owners[size].pop() if owners[size] else UNKNOWN
        rows += [("optimizer_state", size, owner)] * states
    return rows


def let_states_shrink(
    held: Allocations, workers: int | None = None, *, on: str | None = None
) -> None:
    """Leave one of several workers' share of the optimizer's states, or nothing (None).

    Where it keeps state that is not told from what else was held before the recording, as much of that may
    be the state: at the least all of it shrinks, at the most nothing.

    Args:
        held: the allocations.
        workers: how many share.
        on: `gpu` or `cpu`, if only what lies there shrinks.
    """

    def left(nbytes: np.ndarray) -> np.ndarray:
        return nbytes * 0 if workers is None else -(-nbytes // workers)

    states = held.where(kind="optimizer_state", on=on)
    held.resize(states, left(held["bytes"][states]))
    for rank, device in held.devices():
        here = on_device(held, rank, device)
        rest = here & is_kind(held, "unknown") & held.lasting
        kept = _kept_bytes(held, rank)
        if (here & states).any() or device < 0 or kept == 0 or not rest.any():
            continue
        now = held["bytes"][rest]
        whole = int(held["bytes"][rest].sum())
        may = (
            now
            if kept is None
            else np.floor(now * (min(kept, whole) / max(whole, 1))).astype(np.int64)
        )
        least = now - may + left(may)
        held.resize(rest, held.among(least, now if kept is None else least, now))
        held.note(
            f"Which of {bytes_text(whole)} held before the recording are the optimizer's state is not "
            "recorded: the range is from as much of it as there may be to none."
        )
    if workers is None:
        held.remove(states)


def _kept_bytes(held: Allocations, rank: int) -> int | None:
    """Return the bytes of a rank's optimizer states, None if not known; 0 where nothing is updated."""
    trace = held.trace
    described = of_rank(trace, "optimizers", rank)
    if described:
        own = (one.get("local_state_bytes", one.get("state_bytes")) for one in described)
        return sum(each or 0 for each in own)
    if not (trace["phase"] == trace.code("phase", "optimizer")).any():
        return 0
    states = states_of(trace)
    if not states:
        return states
    sizes = held["bytes"][held.where(kind="parameter") & (held["rank"] == rank)]
    return states * int(sizes.sum()) if len(sizes) else None


SCALAR_BYTES = 8  # a state's count of steps takes this or less
ON_DEVICE = ("capturable", "fused")  # settings of torch.optim with which that count lies on the GPU


def _given(rows: Iterable[Row], device: int) -> list[Row]:
    """Return rows with the bytes that the device's allocator gives; none of no bytes."""
    sizes = [(kind, int(rounded(nbytes, device)), whose) for kind, nbytes, whose in rows]
    return [row for row in sizes if row[1]]


def _bytes(rows: Iterable[Row]) -> int:
    return sum(nbytes for _, nbytes, _ in rows)


def add_held_before(held: Allocations, events: MemoryEvents) -> None:
    """Add rows for what each device held before the recording began, and say what is not known."""
    held.parameters = {
        rank: of_rank(held.trace, "parameters", rank) for rank in unique(held["rank"]).tolist()
    }
    _own_gradients(held)
    for rank, device in held.devices():
        on = on_device(held, rank, device)
        first_step = bool(
            (on & is_kind(held, "optimizer_state") & (held["begin"] > BEFORE) & ~freed(held)).any()
        )
        if device == HOST and not first_step:
            add_from_the_step_before(held, rank)
        described = _described(held, rank, device, first_step=first_step)
        rest = np.flatnonzero(on_device(held, rank, device) & held.lasting)
        known = (events["allocated_bytes"][on_device(events, rank, device)] >= 0).any()
        if known and device != HOST and len(rest) == 1:
            _split(held, int(rest[0]), described, first_step=first_step)
        else:
            held.add_before(rank, device, described)
            for said in [] if known or described else not_counted(held.trace, rank, device):
                held.note(said)
    _say(held)


# What the metadata tells --------------------------------------------------------------------------


def _described(held: Allocations, rank: int, device: int, *, first_step: bool) -> list[Row]:
    trace = held.trace
    parameters = held.parameters[rank]
    mine = [number for number, each in enumerate(parameters) if device_of(each) == device]
    found = [("parameter", size_of(parameters[number]), number) for number in mine]
    buffers = of_rank(trace, "buffers", rank)
    replicas = of_rank(trace, "ddp", rank)
    found += [("buffer", each["bytes"], UNKNOWN) for each in buffers if device_of(each) == device]
    if mine:  # a bucket lies where the parameters do
        buckets = [bucket for ddp in replicas for bucket in ddp.get("buckets", [])]
        found += [("bucket", bucket["bytes"], UNKNOWN) for bucket in buckets]
    if not first_step:
        for optimizer in of_rank(trace, "optimizers", rank):
            found += _states(optimizer, parameters, device)
    views = any(ddp.get("gradient_as_bucket_view") for ddp in replicas)
    if not views and _keeps_gradients(held, rank, device):
        sizes = [(parameters[number].get("gradient_bytes", 0), number) for number in mine]
        found += [("gradient", nbytes, number) for nbytes, number in sizes]
    return _given(found, device)


def _states(optimizer: dict[str, Any], parameters: list[dict[str, Any]], device: int) -> list[Row]:
    """Return the state of an optimizer: so many times each parameter as its bytes tell, and the rest."""
    groups = optimizer.get("groups", [])
    names = {name for group in groups for name in group.get("parameters", [])}
    trained = {
        number: each
        for number, each in enumerate(parameters)
        if each.get("name") in names and each.get("requires_grad", True)
    }
    total = optimizer.get("local_state_bytes")
    total = optimizer.get("state_bytes", 0) if total is None else total
    whole = sum(map(size_of, trained.values()))
    times = total // whole if whole else 0
    found = [
        ("optimizer_state", size_of(each), number)
        for number, each in trained.items()
        if device_of(each) == device
        for _ in range(times)
    ]
    rest = total - times * whole
    homes = Counter(map(device_of, trained.values()))
    home = max(homes, key=homes.__getitem__, default=HOST)
    tensors = sum(group.get("tensors", 0) for group in groups)
    if 0 < rest <= SCALAR_BYTES * tensors:  # a count of steps for each parameter
        settings = [group.get("settings", {}) for group in groups]
        if not any(one.get(name) for one in settings for name in ON_DEVICE):
            home = HOST
        if home == device != HOST:
            rest = len(trained) * GRANULE
    return found + [("optimizer_state", rest, UNKNOWN)] * (home == device)


def _keeps_gradients(held: Allocations, rank: int, device: int) -> bool:
    """Tell whether backward passes make no gradients anew: they fill those that are there."""
    on = on_device(held, rank, device)
    backward = on & (held["phase"] == PHASES.index("backward"))
    return bool(backward.any()) and not (on & is_kind(held, "gradient")).any()


def size_of(parameter: dict[str, Any]) -> int:
    """Return the bytes of a parameter, of its part where it is sharded; 0 if its type is unknown."""
    own = parameter.get("local_bytes")
    return (
        int(prod(parameter["shape"])) * ITEM_BYTES.get(parameter.get("dtype", ""), 0)
        if own is None
        else own
    )


def device_of(parameter: dict[str, Any]) -> int | None:
    """Return the device of a parameter or a buffer as memory events count it, None if it has none."""
    kind, _, index = str(parameter.get("device", "")).partition(":")
    if kind in ("", "meta"):
        return None
    return HOST if kind == "cpu" else int(index) if index.isdecimal() else 0


# Into the table ------------------------------------------------------------------------------------


def _split(held: Allocations, row: int, described: list[Row], *, first_step: bool) -> None:
    """Tell what of the bytes that the totals hold all the time is what, as far as it fits."""
    left = int(held["bytes"][row])
    fits: list[Row] = []
    rank = int(held["rank"][row])
    device = int(held["device"][row])
    for kind in ("parameter", "buffer", "bucket", "optimizer_state", "gradient"):
        rows = [each for each in described if each[0] == kind]
        if _bytes(rows) <= left:
            fits += rows
            left -= _bytes(rows)
        else:
            held.note(
                f"The {kind.replace('_', ' ')} bytes of the run's description do not fit into what was held "
                "before the recording: sharded or not on this device. They stay unknown."
            )
    if not held.parameters[rank]:
        fits = _by_shapes(held, rank, device, left)
        left -= _bytes(fits)
    if not any(kind == "workspace" for kind, _, _ in fits) and not is_kind(held, "workspace").any():
        for nbytes in workspaces(held.trace, rank, device):
            if nbytes <= left:
                fits.append(("workspace", nbytes, UNKNOWN))
                left -= nbytes
    if not first_step and not of_rank(held.trace, "optimizers", rank):
        states = by_kind(held, rank, device, fits)
        total = _bytes(states)
        if 0 < total <= left:
            fits += states
            left -= total
            held.note(
                f"{bytes_text(total)} of what was held before the recording are assumed to be the "
                "optimizer's state, which the trace does not list: its kind keeps so much."
            )
    held["bytes"][row] = held["recorded_bytes"][row] = left
    if not left:
        held.remove(np.arange(len(held)) == row)
    held.add_before(rank, device, fits)


def _by_shapes(held: Allocations, rank: int, device: int, most: int) -> list[Row]:
    """Return parameters as operators' shapes show them, and workspaces, if all of them fit into `most` bytes.

    A weight that the last layer may share with an embedding counts twice only where there is room for it
    beside the workspaces.
    """
    weights = weights_of(held.trace, rank)
    library = workspaces(held.trace, rank, device)
    for spaces in (library, []):
        for some in (weights, without_head(weights)):
            found = [("parameter", size_of(each), number) for number, each in enumerate(some)]
            found = _given([*found, *(("workspace", each, UNKNOWN) for each in spaces)], device)
            if 0 < _bytes(found) <= most:
                held.parameters[rank] = some
                held.note(
                    "The trace lists no parameters: they are read off the shapes of its forward operators."
                )
                return found
    return []


def _own_gradients(held: Allocations) -> None:
    """Tell whose gradient each one is, by layer and size; those of one step in the order of the metadata."""
    layers = held.texts("layer")
    owners: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank, parameters in held.parameters.items():
        for number, each in enumerate(parameters):
            device = device_of(each)
            if device is not None and each.get("gradient_bytes"):
                nbytes = int(rounded(each["gradient_bytes"], device))
                owners[rank, each.get("layer"), nbytes].append(number)
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in np.flatnonzero(is_kind(held, "gradient") & (held["begin"] > BEFORE)).tolist():
        key = int(held["rank"][row]), layers[row], int(held["bytes"][row])
        step = int(held["step"][row])
        mine = owners[key]
        nth = seen[step, key]
        seen[step, key] += 1
        if nth < len(mine):
            held["parameter"][row] = mine[nth]


def _say(held: Allocations) -> None:
    for rank, device in held.devices():
        on = on_device(held, rank, device)
        where = "the CPU" if device == HOST else f"GPU {device}"
        if not held.parameters[rank] and device == HOST and (held["device"] < 0).all():
            held.note(
                f"What {where} held before the recording is not known and not counted: the trace lists no "
                "parameters. `daydream collect` lists them."
            )
        unknown = on & is_kind(held, "unknown") & (held["begin"] == BEFORE) & ~freed(held)
        if unknown.any():
            total = int(held["bytes"][unknown].sum())
            held.note(
                f"{total:,} bytes on {where} were held before the recording and stay; whose they are is not "
                "recorded."
            )
