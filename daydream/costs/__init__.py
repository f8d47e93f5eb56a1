"""What work costs: FLOP and bytes from shapes, devices, bandwidths, networks, and predicted durations.

    work(graph, tasks)             FLOP, bytes and family of each task
    bound(graph, kernels)          compute, memory or latency, with achieved shares of the peaks
    retime(graph, kernels, ...)    durations in another element type, on another device, with other work
    scaled_time(graph, tasks, ...) durations when the work of each task is multiplied, on GPU or CPU
    replace_cost(graph, tasks, ...) what replaces operators takes: measured in place, else a factor
    network_of(graph, workers)     workers and what joins them, which tells how long collectives take

What `__all__` names is promised to optimizations (docs/extending.md); the other names here are those of
optimizations that ship. All are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy

if TYPE_CHECKING:
    from daydream.costs.device.call_scaling import (
        copies_into_new_ns,
        copies_ns,
        link_bandwidth,
        memory_bandwidth,
        scaled_time,
    )
    from daydream.costs.device.fusion import fused_chain_ns, fusible_chains
    from daydream.costs.device.input_sizes import (
        grown_time,
        growth_by_grids,
        is_channel_size,
        is_feature_size,
        need_batch,
        need_shapes,
        need_size,
        only_grids_tell,
        recorded_batch,
        recorded_length,
        resized_time,
        shares_of_growth,
    )
    from daydream.costs.device.measured import KernelTable, in_place, replace_cost, take_measured
    from daydream.costs.device.measured_tables import measured_ns, missing_tables
    from daydream.costs.device.retime import (
        Retimed,
        at_peak_ns,
        by_counters,
        counted_conflicts,
        counted_kind,
        measured_first,
        retime,
        retime_untyped,
        say_evidence,
        sped_up,
    )
    from daydream.costs.device.roofline import PAPER_SPEEDUPS, runs_in_tf32
    from daydream.costs.devices import Device, device_of, find_device, known_devices, under_load
    from daydream.costs.kernels import Bound, Work, bound, floor_ns, is_matrix, work
    from daydream.costs.network.cluster_names import find_cluster
    from daydream.costs.network.clusters import Cluster
    from daydream.costs.network.nccl import WAYS, bytes_of_message
    from daydream.costs.network.networks import Network, machine_of, network_of
    from daydream.costs.network.simulated_times import simulated_times
    from daydream.costs.network.world_size import moved_transfers, workers_of
    from daydream.costs.operators import (
        OVER_LINK,
        PAGEABLE,
        TO_DEVICE,
        TO_HOST,
        Operator,
        kernels_are,
        names_fit,
        nodes_that,
        operator,
        operators_that,
    )
    from daydream.costs.resize.growth import (
        arguments_now,
        grow_copies,
        growth_of,
        leave_grown,
    )
    from daydream.costs.resize.new_shapes import parameter_shapes
    from daydream.costs.workload.calls import calls_of
    from daydream.costs.workload.formulas import Argument, Shape, elements, parse_shapes
    from daydream.costs.workload.operator import itemsize
    from daydream.graph.graph import Resizing

_HOMES = lazy.imports_of(__file__)

__all__ = [
    "OVER_LINK",
    "TO_DEVICE",
    "TO_HOST",
    "Bound",
    "Cluster",
    "Device",
    "Network",
    "Operator",
    "Retimed",
    "Work",
    "bound",
    "copies_into_new_ns",
    "copies_ns",
    "device_of",
    "elements",
    "find_cluster",
    "find_device",
    "floor_ns",
    "fused_chain_ns",
    "fusible_chains",
    "is_matrix",
    "itemsize",
    "kernels_are",
    "link_bandwidth",
    "machine_of",
    "memory_bandwidth",
    "names_fit",
    "network_of",
    "nodes_that",
    "operator",
    "operators_that",
    "parse_shapes",
    "recorded_batch",
    "recorded_length",
    "replace_cost",
    "resized_time",
    "retime",
    "say_evidence",
    "scaled_time",
    "take_measured",
    "work",
    "workers_of",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
