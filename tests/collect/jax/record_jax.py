"""Record `cpu_training.xplane.pb`: a few steps of a small model on the CPU, as jax.profiler writes them.

Run it with jax (0.10.2 made the file here) in its own environment: `python record_jax.py OUT.xplane.pb`.
The host's name and the compiled programs, which the profiler writes, are left out of the file.
`tests/collect/test_xplane.py` reads it.
"""

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

STEPS = 4


@jax.jit
def train_step(weights, x, y):
    def loss_of(weights):
        with jax.named_scope("hidden"):
            hidden = jnp.tanh(x @ weights[0])
        with jax.named_scope("head"):
            out = hidden @ weights[1]
        return jnp.mean((out - y) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return [weight - 0.1 * slope for weight, slope in zip(weights, gradient, strict=True)], loss


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    weights = [jax.random.normal(keys[0], (256, 256)) * 0.1, jax.random.normal(keys[1], (256, 8)) * 0.1]
    x, y = jax.random.normal(keys[2], (64, 256)), jax.random.normal(keys[3], (64, 8))
    weights, loss = train_step(weights, x, y)
    loss.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for step in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    weights, loss = train_step(weights, x, y)
                    loss.block_until_ready()
        (found,) = Path(folder).rglob("*.xplane.pb")
        data = found.read_bytes()
        Path(sys.argv[1]).write_bytes(without_hosts(data))


def without_hosts(data):
    """Return an XSpace with its planes alone (field 1), without that of the programs (`/host:metadata`)."""
    kept, at = b"", 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        size, at = varint(data, at)
        at += size
        if key == 1 << 3 | 2 and b"/host:metadata" not in data[begin : begin + 64]:
            kept += data[begin:at]
    return kept


def varint(data, at):
    number, shift = 0, 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


if __name__ == "__main__":
    main()
