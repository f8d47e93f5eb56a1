"""JAX and XLA: `xplane.pb`, the profile that `jax.profiler` writes, through a reader of its own."""
