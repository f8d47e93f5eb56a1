"""Layers under wrappers: DistributedDataParallel, `fully_shard`, copies of a model, torch.compile."""

import re
import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch.distributed")

from live_models import (  # noqa: E402
    GPT,
    MODELS,
    _tokens,
    record,
    recorded,
    train,
)
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from daydream.collect.live.layer_hooks import LayerHooks  # noqa: E402
from daydream.graph.build import build  # noqa: E402
from daydream.model.gradients import MIB, gradients_of  # noqa: E402

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def traced(model, loss):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record(train(model, loss), Path(folder))


@cache
def in_buckets(*, views):
    wrapped = DistributedDataParallel(GPT(), bucket_cap_mb=0.02, gradient_as_bucket_view=views)
    return traced(*_tokens(wrapped, 64))


@cache
def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = GPT(), init_device_mesh("cpu", (1,))
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return traced(*_tokens(model, 64))


def layers(trace, rows):
    return Counter(trace.values("layer", np.flatnonzero(rows)))


def operators(trace, *phases):
    codes = [trace.code("phase", phase) for phase in phases]
    return trace.is_kind("operator") & np.isin(trace["phase"], codes)


WRAPPED = [lambda: in_buckets(views=False), lambda: in_buckets(views=True), sharded]


@pytest.mark.parametrize("make", WRAPPED, ids=["buckets", "views of buckets", "sharded"])
def test_wrapped_work_has_the_models_layers(make):
    trace = make()
    known = {path or "GPT" for path, _ in GPT().named_modules()}

    assert {*layers(trace, trace.is_kind("module"))} <= known
    assert {*layers(trace, operators(trace, "backward"))} <= known | {"loss"}
    assert {*layers(trace, operators(trace, "optimizer"))} <= known
    outside = layers(trace, operators(trace, "other"))
    assert {*outside} <= {None}


@pytest.mark.parametrize("views", [False, True])
def test_a_buckets_rows_have_the_layers_of_its_parameters(views):
    trace = in_buckets(views=views)
    owner = {each["name"]: each["layer"] for each in trace.metadata["parameters"]}
    buckets = [bucket["parameters"] for bucket in trace.metadata["ddp"][0]["buckets"]]
    name = "aten::as_strided" if views else "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    rows = (trace["name"] == trace.code("name", name)) & (trace["step"] == 2) & (trace["parent"] < 0)
    rows &= trace["phase"] == trace.code("phase", "backward")

    assert len(buckets) > 1
    wanted = [owner[name] for bucket in buckets for name in bucket]
    assert trace.values("layer", np.flatnonzero(rows)) == wanted


def test_what_sharding_does_after_the_backward_pass_belongs_to_it():
    trace = sharded()
    for name, layer in (
        ("FSDP::root_post_backward_callback", "GPT"),
        ("FSDP::post_backward_reduce (h.1)", "h.1"),
    ):
        rows = np.flatnonzero(trace["name"] == trace.code("name", name))
        assert {*trace.values("phase", rows)} == {"backward"}
        assert {*trace.values("layer", rows)} == {layer}


@pytest.mark.slow
@pytest.mark.parametrize("hooks_first", [False, True])
def test_a_compiled_model_stays_one_graph(hooks_first):
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._dynamo.utils import counters

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    counters.clear()
    hooks = LayerHooks()
    compiled = torch.compile(GPT(), backend=counter)
    tokens = torch.randint(0, 64, (2, 8))
    if not hooks_first:
        compiled(tokens).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of global hooks, which torch does not trace
        hooks.install()
        try:
            compiled(tokens).sum().backward()
            compiled(tokens).sum().backward()
            assert counter.frame_count == 1
        finally:
            hooks.remove()
        compiled(tokens).sum().backward()
    assert dict(counters["graph_break"]) == {}
    # What was compiled under the hooks is compiled once more without them: as one graph again.
    assert counter.frame_count == 1 + hooks_first


# Buckets computed from a step without DDP are those that DDP reports, gradient by gradient


SMALL = ["mlp", "resnet", "gpt", "odd", "cross attention"]


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
