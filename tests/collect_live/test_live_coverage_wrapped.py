"""Layers under wrappers: DistributedDataParallel, `fully_shard`, copies of a model, torch.compile."""

import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import GPT, _tokens  # noqa: E402
from live_recording import record, train  # noqa: E402

from daydream.collect.live.layer_hooks import LayerHooks  # noqa: E402

dist = pytest.importorskip("torch.distributed", reason="needs torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def group():
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def traced(model, loss):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record(train(model, loss), Path(folder))


@cache
def in_buckets(*, views):
    wrapped = torch.nn.parallel.DistributedDataParallel(
        GPT(), bucket_cap_mb=0.02, gradient_as_bucket_view=views
    )
    return traced(*_tokens(wrapped, 64))


@cache
def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = GPT(), init_device_mesh("cpu", (1,))
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
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
