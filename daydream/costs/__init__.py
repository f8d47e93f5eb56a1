"""What work costs: FLOP and bytes from shapes, devices, bandwidths, networks, and predicted durations.

    work(graph, tasks)             FLOP, bytes and family of each task
    bound(graph, kernels)          compute, memory or latency, with achieved shares of the peaks
    retime(graph, kernels, ...)    durations in another element type, on another device, with other work
    scaled_time(graph, tasks, ...) durations when the work of each task is multiplied, on GPU or CPU
    replace_cost(graph, tasks, ...) what replaces operators takes: measured in place, else a factor
    network_of(graph, workers)     workers and what joins them, which tells how long collectives take

These names are promised to optimizations (docs/extending.md) and are loaded when they are first used.
Files below are the package's own, and may change.
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
        Shares,
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
    from daydream.costs.device.launch_grids import GridGrowth, grown_time, growth_by_grids
    from daydream.costs.device.measured import (
        InPlace,
        KernelTable,
        NewShapes,
        in_place,
        replace_cost,
        take_measured,
    )
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
    from daydream.costs.devices import DEVICES, Device, device_of, find_device, under_load
    from daydream.costs.kernel_names import (
        OVER_LINK,
        PAGEABLE,
        TO_DEVICE,
        TO_HOST,
        kernels_are,
        names_fit,
    )
    from daydream.costs.kernels import Bound, Work, bound, floor_ns, is_matrix, work
    from daydream.costs.network.cluster_names import find_cluster
    from daydream.costs.network.clusters import PROTOCOLS, Cluster, Link, Protocol, bytes_of_message
    from daydream.costs.network.networks import Network, machine_of, network_of
    from daydream.costs.network.simulated_times import simulated_times
    from daydream.costs.network.world_size import workers_of
    from daydream.costs.operators import Operator, nodes_that, operator, operators_that
    from daydream.costs.resize.growth import Growth, growth_of
    from daydream.costs.resize.new_shapes import parameter_shapes
    from daydream.costs.resize.prior_resizes import arguments_now, grow_copies, leave_grown
    from daydream.costs.workload.calls import Calls, calls_of
    from daydream.costs.workload.operator import itemsize
    from daydream.costs.workload.shapes import Argument, Shape, elements, parse_shapes
    from daydream.graph.graph import Resizing

_HOMES = {
    "daydream.costs.device.call_scaling": (
        "copies_into_new_ns", "copies_ns", "link_bandwidth", "memory_bandwidth", "scaled_time",
    ),
    "daydream.costs.device.retime": (
        "at_peak_ns", "by_counters", "counted_conflicts", "counted_kind", "measured_first",
        "retime", "retime_untyped", "say_evidence", "sped_up", "Retimed",
    ),
    "daydream.costs.device.fusion": ("fused_chain_ns", "fusible_chains"),
    "daydream.costs.device.input_sizes": (
        "Shares", "is_channel_size", "is_feature_size", "need_batch", "need_shapes", "need_size",
        "only_grids_tell",
        "recorded_batch", "recorded_length", "resized_time", "shares_of_growth",
    ),
    "daydream.costs.device.launch_grids": ("GridGrowth", "grown_time", "growth_by_grids"),
    "daydream.costs.device.measured": (
        "InPlace",
        "KernelTable",
        "NewShapes",
        "in_place",
        "replace_cost",
        "take_measured",
    ),
    "daydream.costs.device.roofline": ("PAPER_SPEEDUPS", "runs_in_tf32"),
    "daydream.costs.devices": ("DEVICES", "Device", "device_of", "find_device", "under_load"),
    "daydream.costs.kernel_names": (
        "OVER_LINK", "PAGEABLE", "TO_DEVICE", "TO_HOST", "kernels_are", "names_fit",
    ),
    "daydream.costs.kernels": ("Bound", "Work", "bound", "floor_ns", "is_matrix", "work"),
    "daydream.costs.network.cluster_names": ("find_cluster",),
    "daydream.costs.network.clusters": ("PROTOCOLS", "Cluster", "Link", "Protocol", "bytes_of_message"),
    "daydream.costs.network.world_size": ("workers_of",),
    "daydream.costs.network.networks": ("Network", "machine_of", "network_of"),
    "daydream.costs.network.simulated_times": ("simulated_times",),
    "daydream.costs.resize.growth": ("Growth", "growth_of"),
    "daydream.costs.resize.new_shapes": ("parameter_shapes",),
    "daydream.costs.resize.prior_resizes": ("arguments_now", "grow_copies", "leave_grown"),
    "daydream.costs.workload.calls": ("Calls", "calls_of"),
    "daydream.costs.operators": ("Operator", "nodes_that", "operator", "operators_that"),
    "daydream.costs.workload.operator": ("itemsize",),
    "daydream.costs.workload.shapes": ("Argument", "Shape", "elements", "parse_shapes"),
    "daydream.graph.graph": ("Resizing",),
}  # fmt: skip

__all__ = [
    "DEVICES",
    "OVER_LINK",
    "PAGEABLE",
    "PAPER_SPEEDUPS",
    "PROTOCOLS",
    "TO_DEVICE",
    "TO_HOST",
    "Argument",
    "Bound",
    "Calls",
    "Cluster",
    "Device",
    "GridGrowth",
    "Growth",
    "InPlace",
    "KernelTable",
    "Link",
    "Network",
    "NewShapes",
    "Operator",
    "Protocol",
    "Resizing",
    "Retimed",
    "Shape",
    "Shares",
    "Work",
    "arguments_now",
    "at_peak_ns",
    "bound",
    "by_counters",
    "bytes_of_message",
    "calls_of",
    "copies_into_new_ns",
    "copies_ns",
    "counted_conflicts",
    "counted_kind",
    "device_of",
    "elements",
    "find_cluster",
    "find_device",
    "floor_ns",
    "fused_chain_ns",
    "fusible_chains",
    "grow_copies",
    "grown_time",
    "growth_by_grids",
    "growth_of",
    "in_place",
    "is_channel_size",
    "is_feature_size",
    "is_matrix",
    "itemsize",
    "kernels_are",
    "leave_grown",
    "link_bandwidth",
    "machine_of",
    "measured_first",
    "memory_bandwidth",
    "names_fit",
    "need_batch",
    "need_shapes",
    "need_size",
    "network_of",
    "nodes_that",
    "only_grids_tell",
    "operator",
    "operators_that",
    "parameter_shapes",
    "parse_shapes",
    "recorded_batch",
    "recorded_length",
    "replace_cost",
    "resized_time",
    "retime",
    "retime_untyped",
    "runs_in_tf32",
    "say_evidence",
    "scaled_time",
    "shares_of_growth",
    "simulated_times",
    "sped_up",
    "take_measured",
    "under_load",
    "work",
    "workers_of",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
