"""The operator table held against the installed torch, and what every path takes for matrix work.

`DAYDREAM_GOLDEN=write pytest tests/costs/test_operator_table.py` writes again what PyTorch publishes. What
autocast does on GPUs stands in a header of the wheel, which operators it knows on CPUs in the dispatcher,
what a node saves in `derivatives.yaml`, what a view or a random operator is in schemas and tags.
"""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from graph.small_graphs import kernels
from shared import shared_replay
from work_traces import Call, graph_of

import daydream
from daydream.costs import find_device, is_matrix, retime, work
from daydream.costs.contention import measured_contention
from daydream.costs.device.input_sizes import _Kernels
from daydream.costs.device.roofline import Change
from daydream.costs.operators import operator, rows
from daydream.model.saved_tensors import BEHIND, _count, _when

torch = pytest.importorskip("torch")
of_this_torch = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13"
)
TABLE = Path(daydream.__file__).parent / "costs" / "operators.tsv"
HEADER = TABLE.read_text(encoding="utf-8").split("\n", 1)[0].split("\t")
PUBLISHED = HEADER[-4:]
LISTS = {"LOWER_PRECISION_FP": "16", "FP32": "32", "FP32_SET_OPT_DTYPE": "32 result", "PROMOTE": "widest"}
WIDEST_ON_CPU = {"cat", "index_copy", "stack"}  # autocast_mode.cpp, which is no file of the wheel
NARROW_ON_CPU = {"mkldnn_rnn_layer", "_native_multi_head_attention", "_addmm_activation"}
RARE = {
    "cum_seq_q",
    "cum_seq_k",
    "attn_bias",
    "attn_mask",
    "pos_weight",
}  # saved, and undefined in most calls
WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
TAGS = {
    torch.Tag.pointwise: "fusible",
    torch.Tag.nondeterministic_seeded: "random",
    **dict.fromkeys(WAITS, "data-dependent"),
}


def published():
    """Return what the installed torch says of its operators, by column."""
    from torchgen.packaged.autograd.load_derivatives import load_derivatives

    found = {}
    at_once = set()

    def add(name, column, value):
        found.setdefault(bare(name), {key: set() for key in PUBLISHED})[column].add(value)

    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8")
    on_gpu = {"norm": "32 result"}  # AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE
    for title, width in LISTS.items():
        part = header.split(f"define AT_FORALL_{title}(_)")[1].split("\n\n")[0]
        on_gpu |= dict.fromkeys(re.findall(r"_\((\w+)", part), width)
    for name, width in on_gpu.items():
        add(name, "autocast_gpu", width)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for schema in torch._C._jit_get_all_schemas():
        full = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if not schema.name.startswith("aten::") or not torch._C._dispatch_has_kernel(full):
            continue
        views = [each.alias_info for each in schema.returns if each.alias_info]
        if views and not any(each.is_write for each in views):
            add(full, "tags", "view")
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        tags = {*getattr(getattr(packet, schema.overload_name or "default", None), "tags", ())}
        for tag in tags & TAGS.keys():
            add(full, "tags", TAGS[tag])
        if not tags & WAITS and "out" not in schema.overload_name:
            at_once.add(bare(full))
        if has_kernel(full, "CompositeImplicitAutograd"):
            add(full, "tags", "composite")
        if has_kernel(full, "AutocastCPU"):
            narrow = on_gpu.get(bare(full)) == "16" or bare(full) in NARROW_ON_CPU
            add(full, "autocast_cpu", "widest" if bare(full) in WIDEST_ON_CPU else "16" if narrow else "32")
    folder = Path(torch.__file__).parent.parent / "torchgen/packaged"
    files = ("autograd/derivatives.yaml", "ATen/native/native_functions.yaml", "ATen/native/tags.yaml")
    infos, _ = load_derivatives(*(str(folder / file) for file in files))
    for info in (info for of_key in infos.values() for info in of_key.values() if info.has_derivatives):
        rare = RARE | ({"weight"} if re.search("nll_loss|binary_cross", info.name) else set())
        saved = info.all_saved_inputs, info.all_saved_outputs
        tensors = [[each for each in of if "'Tensor'" in str(each.nctype.type)] for of in saved]
        counts = [sum(each.nctype.name not in rare for each in of) for of in tensors]
        add(info.name, "nodes", f"{info.op} {counts[0]} {counts[1]}")
    for name in at_once & found.keys():  # some of its overloads wait for no values
        found[name]["tags"].discard("data-dependent")
    return {name: {key: "; ".join(sorted(of[key])) for key in PUBLISHED} for name, of in found.items()}


def bare(name):
    return name.removeprefix("aten::").split(".")[0].removesuffix("_")


@of_this_torch
def test_what_torch_publishes_is_in_the_table():
    now = {name: dict(zip(HEADER, row, strict=True)) for name, row in rows().items()}
    for name, columns in published().items():
        now[name] = {**dict.fromkeys(HEADER, ""), **now.get(name, {}), "name": name, **columns}
    lines = ["\t".join(HEADER), *("\t".join(now[name].values()) for name in sorted(now))]
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert TABLE.read_text(encoding="utf-8").splitlines() == lines


def test_what_torch_counts_flop_of_multiplies_matrices():
    from torch.utils.flop_counter import flop_registry

    names = {each.__name__.split(".")[0] for each in flop_registry if str(each).startswith("aten.")}
    assert len(names) > 15
    assert not [name for name in names if not operator(f"aten::{name}").is_matrix]


@of_this_torch
def test_numbers_and_masks_of_functions_are_those_of_numpy_and_torch():
    x = torch.empty(4, 4, device="meta")
    # A bound is a number in most calls, and the buffer is empty on GPUs.
    fewer = {"clamp_max": 1, "clamp_min": 1, "log_sigmoid_backward": 1}
    for op in map(operator, rows()):
        numpys = getattr(np, op.name, None)
        if isinstance(numpys, np.ufunc) and op.formula == "element_wise":
            assert (op.flop, op.reads) == (1, numpys.nin), op
        found = [*map(schema_tensors, torch._C._jit_get_schemas_for_operator(f"aten::{op.name}"))]
        if found and op.formula == "element_wise":
            assert op.reads == max(found) - fewer.get(op.name, 0), op
        if found and op.family == "element-wise" and op.formula != "write":
            for count in {*found} - {0}:
                with suppress(RuntimeError, ValueError, TypeError):
                    result = getattr(torch.ops.aten, op.name)(*[x] * count)
                    masked = isinstance(result, torch.Tensor) and result.dtype == torch.bool
                    assert masked == ("mask" in op.traits), op


def schema_tensors(schema):
    return sum(str(each.type) == "Tensor" and not each.is_out for each in schema.arguments)


FACTORY = re.compile(r"(new_)?(empty|full|ones|zeros)(_|$)|resize(_as)?$")
ROLES = {"self": "input", "running_mean": "statistic", "running_var": "statistic"}
ROLES |= {name: name for name in ("input", "weight", "bias", "query", "key", "value")}


@of_this_torch
def test_families_formulas_roles_and_traits_belong_together():
    for op in map(operator, rows()):
        assert op.family if op.formula else not op.family or op.is_matrix, op
        forward = operator(op.name.removesuffix("_backward"))
        assert op.family == forward.family or not forward.is_matrix, op
        assert op.family == "attention" or "attention" not in op.name, op
        assert "loss" in op.traits or "_loss" not in op.name, op
        assert "allocates" in op.traits or not FACTORY.match(op.name), op
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{op.name}")
        layer = op.formula and op.family in ("normalization", "softmax")
        if schemas and "backward" not in op.name and (layer or op.name.startswith("_scaled_dot_product_f")):
            named = ",".join(ROLES.get(each.name, "") for each in schemas[0].arguments)
            assert ",".join(op.roles) == named.rstrip(","), op
            assert not layer or op.reads == op.writes == 1, op


TRACES = (
    "kineto/h100_bert_small_inference.json.gz", "kineto/a100_resnet_ddp_rank0of2.json.gz",
    "kineto/h100_vit_inference.json.gz", "kineto/v100_resnet50_loader_workers_0.json.gz",
    "kineto/a100_particle_transformer_forward_batch8.json.gz",
)  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_every_path_takes_the_same_kernels_for_matrix_work(name):
    graph = shared_replay(name).graph
    chosen = kernels(graph)
    matrix = is_matrix(graph, chosen)
    change = Change(graph, chosen, dtype=None, target=None, flop_factor=1, bytes_factor=1)
    assert np.array_equal(change.matrix, matrix)
    assert np.array_equal(_Kernels(chosen).product, matrix)
    family = work(graph, chosen).family.astype(str)
    named = np.isin(family, ("matmul", "convolution", "attention", "recurrent"))
    assert not (matrix & ~named & (family != "None")).any()
    assert measured_contention(graph) is None or matrix.any()


def test_no_table_is_read_at_a_start():
    code = (
        "import daydream, daydream.costs, daydream.model, daydream.memory, daydream.optimizations.autocast\n"
        "from daydream.costs import operators\n"
        "assert not operators.rows.cache_info().currsize + operators._classes.cache_info().currsize"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


CASES = {
    "product": (lambda t, x: t.mm(x, x), (8, 8)),
    "added product": (lambda t, x: t.addmm(x, x, x), (8, 8)),
    "convolution": (lambda t, x: t.nn.functional.conv2d(x, x), (4, 4, 3, 3)),
    "layer norm": (lambda t, x: t.nn.LayerNorm(8)(x), (4, 8)),
    "batch norm": (lambda t, x: t.nn.BatchNorm2d(4)(x), (2, 4, 8, 8)),
    "group norm": (lambda t, x: t.nn.GroupNorm(2, 4)(x), (2, 4, 8, 8)),
    "gelu": (lambda t, x: t.nn.functional.gelu(x), (4, 8)),
    "relu": (lambda t, x: x.relu(), (4, 8)),
    "softmax": (lambda t, x: x.softmax(-1), (4, 8)),
    "pooling": (lambda t, x: t.nn.functional.max_pool2d(x, 2), (2, 4, 8, 8)),
    "attention": (lambda t, x: t.nn.functional.scaled_dot_product_attention(x, x, x), (1, 2, 8, 16)),
    "sum": (lambda t, x: x + x, (4, 8)),
    "transposed": (lambda t, x: x.t(), (4, 8)),
    "mean": (lambda t, x: x.mean(), (4, 8)),
    "both": (lambda t, x: x * x.detach().requires_grad_(), (4, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_saves_as_many_tensors_as_hooks_see(case):
    t = torch
    call, shape = CASES[case]
    x = t.randn(shape, requires_grad=True)
    saved = []
    with t.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        node = call(t, x).grad_fn
    assert _count(node.name()) == len(saved)


LAST = {  # what ends a checkpointed block: its operator, a call
    "linear": ("addmm", lambda t, x: t.nn.functional.linear(x, x, x[0])),
    "gelu": ("gelu", lambda t, x: t.nn.functional.gelu(x)),
    "softmax": ("_softmax", lambda t, x: x.softmax(-1)),
    "relu": ("relu", lambda t, x: x.relu()),
    "layer norm": ("native_layer_norm", lambda t, x: t.nn.functional.layer_norm(x, (8,))),
}


@pytest.mark.parametrize("last", LAST)
def test_torch_computes_the_last_operator_again_if_its_result_is_saved(last):
    t = torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    ran = []

    class Listed(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    operator, call = LAST[last]
    x = t.randn(8, 8, requires_grad=True)
    y = checkpoint(lambda z: call(t, z.sin()), x, use_reentrant=False)  # `sin` saves its input
    node = y.grad_fn.name()
    with Listed():
        y.backward(t.ones_like(y))
    again = _when(node) == BEHIND
    assert ran.count(operator) == again
    assert ran.count("sin") == 1


def test_batch_norm_of_a_library_of_convolutions_is_no_product():
    shapes = "8x4x4x4 4 4"
    norm = Call("aten::mine", shapes, "cudnn::bn_fw_tr_1C11_kernel_NCHW 10_000_000")
    product = Call("aten::mine", shapes, "volta_sgemm_64x64 10_000_000")
    graph = graph_of(norm, product)
    work = kernels(graph)
    assert is_matrix(graph, work).tolist() == [False, True]
    # It streams: T4 to V100 goes by bandwidth, 320 and 900 GB/s, not by arithmetic, 8.1 and 15.7 TFLOP/s.
    slower = retime(graph, work, device=find_device("t4")).duration_ns / 10_000_000
    assert slower[0] == pytest.approx(900 / 320, rel=0.01)
