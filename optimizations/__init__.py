"""The optimizations that ship: one in a file of its name, or several in one file."""

#: Those in a file of another name, where `COMMANDS` has what is not the same for all of the file.
_FILES = {
    "_communication": "blueconnect network no-stragglers overlap",
    "_fused_chains": "fused-bias-act fused-cross-entropy fused-norm fused-softmax",
    "_hardware": "bank-conflicts collective-times cpu gpu pcie roofline scale",
    "_input": "dataloader pinned-memory prefetch",
    "_kernels": "channels-last flash-attention restructured-batchnorm tf32",
    "_launches": "cuda-graphs remove-sync",
    "_layers": "add-layers freeze remove-layers",
    "_offload": "gist offload-optimizer vdnn",
    "_optimizer": "foreach-optimizer fused-adam fused-optimizer grad-scaler zero-grad-none",
    "_products": "fp8 pruning quantize",
    "_substitution": "metaflow replace",
    "autocast": "amp",
    "batch_size": "sequence-length",
    "checkpointing": "rematerialize",
    "compression": "dgc",
    "p3": "tictac",
}
OF_SEVERAL = {name: file for file, names in _FILES.items() for name in names.split()}

#: The line of a JAX program that makes a change, where torch's (`CODE`) is no help.
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
