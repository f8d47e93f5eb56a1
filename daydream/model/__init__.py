"""What model a trace is of: blocks, attention, parameters, gradients, optimizers, compiled code.

    repeated_blocks(graph)         the blocks that the model repeats
    gradients_of(graph)            gradients in the order they are ready, with their bytes
    update_of(graph)               the optimizer: its kind, how many parameters it updates
    find_chains(graph, ...)        operators that follow each other as a pattern says
    attention_chains(graph)        the kernels of each attention call

These names are promised to optimizations (docs/extending.md) and are loaded when they are first used.
Files below are the package's own, and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy

if TYPE_CHECKING:
    from daydream.graph.calls import (
        call_rows,
        fused_parts,
        in_replays,
        mostly_replayed,
        shapes_in,
        unrecorded_launches,
    )
    from daydream.model.attention import (
        FUSED_ATTENTION_KERNEL,
        FUSED_ATTENTION_OP,
        attention_chains,
        fused_attention_ns,
    )
    from daydream.model.blocks import block_of_layers, repeated_blocks
    from daydream.model.buckets import (
        BUCKET_MB,
        MIB,
        Buckets,
        Gradients,
        compute_lane,
        gradients_of,
    )
    from daydream.model.captured import Captured, capture, capture_parts, start_as_nodes
    from daydream.model.chains import (
        backward_chains,
        find_chains,
        fuse_passes,
        remove_with_operators,
        work_tasks,
    )
    from daydream.model.compiled_calls import GUARDS, compile_cpu_calls, remove_dispatch
    from daydream.model.feature_maps import input_bytes, makers_and_users
    from daydream.model.gradients import ACCUMULATE
    from daydream.model.graph_breaks import breaks_of, remove_breaks
    from daydream.model.half_times import (
        DOUBT_OF_CONVOLUTIONS,
        FEW_ROWS_IN_TF32,
        LAYOUT_CHANGE,
        Narrowed,
        changes_layout,
        doubt_of_products,
        few_rows_ns,
        in_16_bits,
    )
    from daydream.model.loading import (
        LoaderWaits,
        loads_by_processes,
        recorded_waits,
        untraced_waits,
    )
    from daydream.model.optimizers import (
        FUSED_UPDATE_KERNEL,
        FUSED_UPDATE_OP,
        UPDATE_RULES,
        Update,
        UpdateRule,
        fused_update_ns,
        need_setting,
        update_calls,
        update_of,
    )
    from daydream.model.parameter_use_order import first_parameter_uses
    from daydream.model.parameters import (
        CompiledPart,
        Trained,
        autograd_node_count,
        compiled_parts,
        joint_update,
        scale_autograd_walks,
        trained_parameters,
    )
    from daydream.model.precision import (
        SCALER_CALL_NS,
        SCALER_TENSOR_NS,
        border_kernel_ns,
        cast_ns,
        dispatch_ns,
        main_dtype,
        operand_elements,
        streaming_ns,
        unscale_ns,
        weight_casts,
        wide_kernels,
    )
    from daydream.model.saved_tensors import behind_last_saved, saved_tensor_counts

_HOMES = {
    "daydream.graph.calls": (
        "call_rows", "fused_parts", "in_replays", "mostly_replayed", "shapes_in", "unrecorded_launches",
    ),
    "daydream.model.blocks": ("block_of_layers", "repeated_blocks"),
    "daydream.model.gradients": ("ACCUMULATE",),
    "daydream.model.attention": (
        "FUSED_ATTENTION_KERNEL", "FUSED_ATTENTION_OP", "attention_chains", "fused_attention_ns",
    ),
    "daydream.model.parameters": (
        "autograd_node_count", "compiled_parts", "joint_update", "scale_autograd_walks",
        "trained_parameters", "CompiledPart", "Trained",
    ),
    "daydream.model.buckets": ("BUCKET_MB", "MIB", "Buckets", "Gradients", "compute_lane", "gradients_of"),
    "daydream.model.captured": ("Captured", "capture", "capture_parts", "start_as_nodes"),
    "daydream.model.chains": (
        "backward_chains", "find_chains", "fuse_passes", "remove_with_operators", "work_tasks",
    ),
    "daydream.model.compiled_calls": ("GUARDS", "compile_cpu_calls", "remove_dispatch"),
    "daydream.model.graph_breaks": ("breaks_of", "remove_breaks"),
    "daydream.model.feature_maps": ("input_bytes", "makers_and_users"),
    "daydream.model.half_times": (
        "DOUBT_OF_CONVOLUTIONS", "FEW_ROWS_IN_TF32", "LAYOUT_CHANGE", "Narrowed",
        "changes_layout", "doubt_of_products", "few_rows_ns", "in_16_bits",
    ),
    "daydream.model.loading": (
        "LoaderWaits", "loads_by_processes", "recorded_waits", "untraced_waits",
    ),
    "daydream.model.optimizers": (
        "FUSED_UPDATE_KERNEL", "FUSED_UPDATE_OP", "UPDATE_RULES", "Update", "UpdateRule",
        "fused_update_ns", "need_setting", "update_calls", "update_of",
    ),
    "daydream.model.parameter_use_order": ("first_parameter_uses",),
    "daydream.model.precision": (
        "SCALER_CALL_NS", "SCALER_TENSOR_NS", "border_kernel_ns", "cast_ns", "dispatch_ns", "main_dtype",
        "operand_elements", "streaming_ns", "unscale_ns",
        "weight_casts", "wide_kernels",
    ),
    "daydream.model.saved_tensors": ("behind_last_saved", "saved_tensor_counts"),
}  # fmt: skip

__all__ = [
    "ACCUMULATE",
    "BUCKET_MB",
    "DOUBT_OF_CONVOLUTIONS",
    "FEW_ROWS_IN_TF32",
    "FUSED_ATTENTION_KERNEL",
    "FUSED_ATTENTION_OP",
    "FUSED_UPDATE_KERNEL",
    "FUSED_UPDATE_OP",
    "GUARDS",
    "LAYOUT_CHANGE",
    "MIB",
    "SCALER_CALL_NS",
    "SCALER_TENSOR_NS",
    "UPDATE_RULES",
    "Buckets",
    "Captured",
    "CompiledPart",
    "Gradients",
    "LoaderWaits",
    "Narrowed",
    "Trained",
    "Update",
    "UpdateRule",
    "attention_chains",
    "autograd_node_count",
    "backward_chains",
    "behind_last_saved",
    "block_of_layers",
    "border_kernel_ns",
    "breaks_of",
    "call_rows",
    "capture",
    "capture_parts",
    "cast_ns",
    "changes_layout",
    "compile_cpu_calls",
    "compiled_parts",
    "compute_lane",
    "dispatch_ns",
    "doubt_of_products",
    "few_rows_ns",
    "find_chains",
    "first_parameter_uses",
    "fuse_passes",
    "fused_attention_ns",
    "fused_parts",
    "fused_update_ns",
    "gradients_of",
    "in_16_bits",
    "in_replays",
    "input_bytes",
    "joint_update",
    "loads_by_processes",
    "main_dtype",
    "makers_and_users",
    "mostly_replayed",
    "need_setting",
    "operand_elements",
    "recorded_waits",
    "remove_breaks",
    "remove_dispatch",
    "remove_with_operators",
    "repeated_blocks",
    "saved_tensor_counts",
    "scale_autograd_walks",
    "shapes_in",
    "start_as_nodes",
    "streaming_ns",
    "trained_parameters",
    "unrecorded_launches",
    "unscale_ns",
    "untraced_waits",
    "update_calls",
    "update_of",
    "weight_casts",
    "wide_kernels",
    "work_tasks",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
