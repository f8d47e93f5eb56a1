"""The gathers and scatters predicted from a step without sharding are those that `fully_shard` asks for."""

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard

from daydream.optimizations.fsdp import fsdp  # noqa: E402
from live_models import (  # noqa: E402
    MODELS,
    record,
    recorded,
    train,
)
from torch import distributed, nn  # noqa: E402

from daydream.graph.build import build  # noqa: E402


class Ring:
    """Writes down what `fully_shard` asks for; other workers' shards are as our own."""

    def __init__(self, name, sent):
        self.name, self.sent = name, sent

    def allocate(self, size, *, dtype, device):
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, **_):
        self.sent.append((self.name, input_tensor.nbytes))
        if self.name == "all_gather":
            output_tensor.view(group.size(), -1).copy_(input_tensor.clone().expand(group.size(), -1))


def asked(model, loss, units, stage, workers):
    """Return what a step of the sharded model asks for."""
    if distributed.is_initialized():
        pytest.skip("torch.distributed is in use")
    sent = []
    distributed.init_process_group("fake", rank=0, world_size=workers, store=fake.FakeStore())
    try:
        mesh = distributed.init_device_mesh("cpu", (workers,))
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=stage == 3)
        fully_shard(model, mesh=mesh, reshard_after_forward=None if stage == 3 else False)
        for unit in (*units, model):
            unit.set_custom_all_gather(Ring("all_gather", sent))
            unit.set_custom_reduce_scatter(Ring("reduce_scatter", sent))
        for _ in range(2):
            sent.clear()
            loss().backward()
    finally:
        distributed.destroy_process_group()
    return sent


def predicted(trace, stage, workers, **options):
    """Return what each covered step of a trace is predicted to ask for."""
    graph = build(trace)
    fsdp(graph, stage=stage, workers=workers, bandwidth=1.0, **options)
    collectives = graph.select(kind="collective")
    steps = {}
    columns = (collectives.step.tolist(), collectives.collective.tolist(), collectives.bytes.tolist())
    order = graph.columns["order"][collectives.ids].argsort(kind="stable")
    rows = list(zip(*columns, strict=True))
    for place in order.tolist():
        step, name, nbytes = rows[place]
        steps.setdefault(step, []).append((name, nbytes))
    return list(steps.values())


BLOCKS = {
    "gpt": lambda model: list(model.h),
    "resnet": lambda model: list(model.blocks),
}


@pytest.mark.parametrize("workers", [3, 8])
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", BLOCKS)
def test_collectives_are_those_of_fully_shard_byte_by_byte(name, stage, workers):
    _, trace, _ = recorded(name)
    model, loss = MODELS[name]()
    real = asked(model, loss, BLOCKS[name](model), stage, workers)
    for overlap in (True, False):
        steps = predicted(trace, stage, workers, overlap=overlap)
        assert len(steps) >= 3
        assert all(step == real for step in steps)


def _head_of_its_own():
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(3)), nn.Linear(10, 5))
    return model, lambda: model(torch.randn(2, 10)).pow(2).mean()


@pytest.mark.parametrize("stage", [2, 3])
def test_a_unit_that_nothing_runs_before_is_scattered_behind_the_root(stage, tmp_path):
    # Inputs have no gradients, so that torch's hook on the first unit's input never runs.
    model, loss = _head_of_its_own()
    trace = record(train(model, loss), tmp_path)
    model, loss = _head_of_its_own()
    real = asked(model, loss, list(model[:3]), stage, 3)
    assert [nbytes for name, nbytes in real if name == "reduce_scatter"] == [
        4 * (12 * 10 + 12), 4 * (12 * 10 + 12), 4 * (6 * 10 + 6), 4 * (12 * 10 + 12),
    ]  # fmt: skip
    steps = predicted(trace, stage, 3, layers="[012]")
    assert len(steps) >= 3
    assert all(step == real for step in steps)
