"""What model a trace is of: blocks, attention, parameters, gradients, optimizers, compiled code.

    repeated_blocks(graph)         the blocks that the model repeats
    gradients_of(graph)            gradients in the order they are ready, with their bytes
    update_of(graph)               the optimizer: its kind, how many parameters it updates
    find_chains(graph, ...)        operators that follow each other as a pattern says
    attention_chains(graph)        the kernels of each attention call

What `__all__` names is promised to optimizations (docs/extending.md); the other names here are those of
optimizations that ship. All are loaded when they are first used.
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
    from daydream.model.captured import (
        Captured,
        breaks_of,
        capture,
        capture_parts,
        remove_breaks,
        remove_with_operators,
        start_as_nodes,
    )
    from daydream.model.chains import (
        backward_chains,
        find_chains,
        fuse_passes,
        work_tasks,
    )
    from daydream.model.compiled_calls import GUARDS, compile_cpu_calls, remove_dispatch
    from daydream.model.gradients import (
        ACCUMULATE,
        BUCKET_MB,
        MIB,
        CompiledPart,
        Gradients,
        autograd_node_count,
        compiled_parts,
        compute_lane,
        first_parameter_uses,
        gradients_of,
        joint_update,
        scale_autograd_walks,
        trained_parameters,
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
        fused_update_ns,
        need_setting,
        update_calls,
        update_of,
    )
    from daydream.model.precision import (
        DOUBT_OF_CONVOLUTIONS,
        LAYOUT_CHANGE,
        SCALER_CALL_NS,
        SCALER_TENSOR_NS,
        border_kernel_ns,
        cast_ns,
        changes_layout,
        dispatch_ns,
        doubt_of_products,
        flow,
        in_16_bits,
        insert_elementwise,
        main_dtype,
        operand_elements,
        streaming_ns,
        unscale_ns,
        weight_casts,
        wide_kernels,
    )
    from daydream.model.saved_tensors import (
        behind_last_saved,
        input_bytes,
        makers_and_users,
        saved_tensor_counts,
    )
    from daydream.world.compose import in_order, passes_of_stages

_HOMES = lazy.imports_of(__file__)

__all__ = [
    "BUCKET_MB",
    "MIB",
    "UPDATE_RULES",
    "Gradients",
    "attention_chains",
    "backward_chains",
    "block_of_layers",
    "call_rows",
    "compute_lane",
    "dispatch_ns",
    "find_chains",
    "first_parameter_uses",
    "fuse_passes",
    "gradients_of",
    "in_replays",
    "joint_update",
    "operand_elements",
    "remove_with_operators",
    "repeated_blocks",
    "streaming_ns",
    "trained_parameters",
    "update_calls",
    "update_of",
    "work_tasks",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
