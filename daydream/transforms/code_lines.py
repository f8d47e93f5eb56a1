"""The line of a training script that makes a change, in the framework that the trace is of.

An optimization's own file holds the line for torch (`CODE`). For JAX the lines are here; where JAX has none
(its compiler fuses kernels and updates by itself), no line is better than one of torch.
"""

from __future__ import annotations

from daydream.errors import DaydreamError
from daydream.graph.graph import Graph
from daydream.transforms.registry import Optimization, find

JAX = "jax"  # what `metadata["profiler"]` says of its traces
IN_JAX = {
    "amp": "params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # or dtype= of layers",
    "autocast": "params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # or dtype= of layers",
    "batch-size": "batch = next(batches)  # of another size",
    "checkpointing": "block = jax.checkpoint(block)",
    "compile": "step = jax.jit(step)",
    "cuda-graphs": 'os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUDNN"',
    "dataloader": "grain.DataLoader(data_source=data, sampler=sampler, worker_count=workers)",
    "ddp": 'batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))',
    "flash-attention": 'jax.nn.dot_product_attention(q, k, v, implementation="cudnn")',
    "foreach-optimizer": "update = jax.jit(update, donate_argnums=(0, 1))  # parameters and optimizer state",
    "freeze": "layer_params = jax.lax.stop_gradient(layer_params)",
    "fsdp": 'params = jax.device_put(params, NamedSharding(mesh, PartitionSpec("data")))',
    "fused-adam": "update = jax.jit(update, donate_argnums=(0, 1))  # parameters and optimizer state",
    "fused-optimizer": "update = jax.jit(update, donate_argnums=(0, 1))  # parameters and optimizer state",
    "gradient-accumulation": "optimizer = optax.MultiSteps(optimizer, every_k_schedule=4)",
    "overlap": 'os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"',
    "remove-sync": "losses.append(loss)  # float(loss) when the loop is over",
    "roofline": "# a better kernel: Pallas, another library, or your own",
    "tf32": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
}


def framework_of(graph: Graph) -> str | None:
    """Return what the recorded program is written in, where that is known and is not torch."""
    profiler = graph.trace.metadata.get("profiler") if graph.trace is not None else None
    return JAX if profiler == JAX else None


def code_of(name: str, framework: str | None = None) -> str | None:
    """Return the lines of a training script that make a change, `amp` or `amp+compile`; None if none does.

    `framework` is what the script is written in, see `framework_of`; None is torch.
    """
    lines = []
    for part in name.split("+"):
        try:
            lines.append(line_of(find(part), framework))
        except DaydreamError:  # a function that was given as it is, and has no file
            lines.append("")
    return "; ".join(dict.fromkeys(lines)) if all(lines) else None


def line_of(optimization: Optimization, framework: str | None = None) -> str:
    """Return the line that makes a change; empty where none does."""
    return IN_JAX.get(optimization.name, "") if framework == JAX else optimization.code
