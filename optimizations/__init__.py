"""The optimizations that ship: one in a file of its name, or several in one file."""

#: Those in a file of another name, where `COMMANDS` has what is not the same for all of the file.
OF_SEVERAL = {
    "amp": "autocast",
    "dgc": "compression",
    "fp8": "_products",
    "fused-adam": "fused_optimizer",
    "fused-bias-act": "_fused_chains",
    "fused-cross-entropy": "_fused_chains",
    "fused-norm": "_fused_chains",
    "fused-softmax": "_fused_chains",
    "gist": "_offload",
    "offload-optimizer": "_offload",
    "pruning": "_products",
    "quantize": "_products",
    "rematerialize": "checkpointing",
    "sequence-length": "batch_size",
    "tictac": "p3",
    "vdnn": "_offload",
}

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
    "fp8": "_products",
    "fused-adam": "update = jax.jit(update, donate_argnums=(0, 1))  # parameters and optimizer state",
    "fused-optimizer": "update = jax.jit(update, donate_argnums=(0, 1))  # parameters and optimizer state",
    "gradient-accumulation": "optimizer = optax.MultiSteps(optimizer, every_k_schedule=4)",
    "overlap": 'os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"',
    "remove-sync": "losses.append(loss)  # float(loss) when the loop is over",
    "roofline": "# a better kernel: Pallas, another library, or your own",
    "tf32": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
}
