"""Buckets computed from a step without DDP are those that DDP reports, gradient by gradient."""

import re

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS  # noqa: E402
from live_recording import record, recorded, train  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from daydream.graph.build import build  # noqa: E402
from daydream.model.gradients import MIB, gradients_of  # noqa: E402

SMALL = ["mlp", "resnet", "gpt", "odd", "cross attention"]


@pytest.fixture(scope="module", autouse=True)
def one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Whole(nn.Module):
    """A model and its loss as one module: DDP has to see the forward pass."""

    def __init__(self, setup):
        super().__init__()
        self.model, self.loss = setup

    def forward(self):
        return self.loss()


def reported(setup, cap_mb):
    """Return the buckets that DDP has rebuilt in the order in which gradients were ready."""
    size = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    wrapped = DistributedDataParallel(Whole(setup), **size)
    step = train(wrapped, wrapped)
    for _ in range(3):
        step()
    said = wrapped._get_ddp_logging_data()
    assert said["has_rebuilt_buckets"]
    root = type(setup[0]).__name__  # where a parameter of no inner module is
    where = {
        id(parameter): name.rpartition(".")[0] or root for name, parameter in setup[0].named_parameters()
    }
    learned = [parameter for parameter in setup[0].parameters() if parameter.requires_grad]
    buckets = []
    for text in re.split(r",\s+", said["rebuilt_per_bucket_param_indices"]):
        indices = [int(index) for index in text.split()]
        buckets.append([(where[id(learned[i])], learned[i].nbytes) for i in indices])
    sizes = [int(size) for size in said["rebuilt_bucket_sizes"].split(", ")]
    assert [sum(nbytes for _, nbytes in bucket) for bucket in buckets] == sizes
    return buckets


def computed(trace, cap_mb):
    """Return the buckets of each covered step."""
    gradients = gradients_of(build(trace))
    buckets = gradients.buckets(cap_mb)
    steps = {}
    columns = (
        gradients.nodes.step.tolist(), buckets.number.tolist(), gradients.nodes.layer.tolist(),
        gradients.nbytes.tolist(),
    )  # fmt: skip
    for step, number, layer, nbytes in zip(*columns, strict=True):
        steps.setdefault(step, {}).setdefault(number, []).append((layer or "", nbytes))
    return [[buckets[number] for number in sorted(buckets)] for buckets in steps.values()]


def caps(setup):
    """Return the default, sizes that make about 3 and 9 buckets, and one that a byte fills."""
    total = sum(parameter.nbytes for parameter in setup[0].parameters())
    return [None, total // 3 / MIB, total // 9 / MIB, 1 / MIB]


@pytest.mark.parametrize("name", SMALL)
def test_buckets_of_small_models(name):
    _, trace, _ = recorded(name)
    for cap_mb in caps(MODELS[name]()):
        real = reported(MODELS[name](), cap_mb)
        steps = computed(trace, cap_mb)
        assert len(steps) >= 3
        assert all(step == real for step in steps), cap_mb
    assert len(real) > 2


class TwoTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(16, 16).double() for _ in range(3))

    def forward(self, x):
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            x = wide(narrow(x).double()).float()
        return x


def _two_types():
    model = TwoTypes()
    return model, lambda: model(torch.randn(2, 16)).pow(2).mean()


def test_each_element_type_fills_buckets_of_its_own(tmp_path):
    trace = record(train(*_two_types()), tmp_path)
    for cap_mb in (1 / MIB, 1000 / MIB, 1100 / MIB, 2000 / MIB):
        real = reported(_two_types(), cap_mb)
        assert len(real) > 2
        assert all(step == real for step in computed(trace, cap_mb)), cap_mb
    # What is left of both types at the end comes in the order of a hash table: the same buckets, in any.
    real = sorted(reported(_two_types(), None))
    assert len(real) == 2
    assert all(sorted(step) == real for step in computed(trace, None))
