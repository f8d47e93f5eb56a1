"""Fused, foreach and offloaded optimizers, gradients set to None: each answer worked out by hand."""

import pytest
from daydream.optimizations._offload import offload_optimizer
from daydream.optimizations._optimizer import foreach_optimizer, fused_adam, fused_optimizer
from graph.small_graphs import kernels, put
from recorded import (
    Program,
    answers,
    does_not_apply,
    makespan,
    refusals,
    thread_and_stream,
)

from daydream import Graph, NotApplicableError
from daydream.costs.device.call_scaling import link_bandwidth, memory_bandwidth
from daydream.model.optimizers import TAKES, update_of
from daydream.transforms.registry import find

COPY = "Memcpy DtoD (Device -> Device)"
ADAM_OF_1000, ADAM_OF_A_MILLION = (
    {"optimizers": [{"name": "Adam", "groups": [{"tensors": 2, "elements": elements}]}]}
    for elements in (1000, 10**6)
)


def per_parameter(
    *,
    tensors=2,
    kernels="aten::mul_ aten::add_",
    optimizer="SGD",
    **metadata,
):
    """Backward 20 ns, then the kernels of 30 ns of each tensor in a range of the optimizer."""
    program = Program()
    program.op("aten::mm", "backward", ("gemm", 20))
    with program.range(f"Optimizer.step#{optimizer}.step", phase="optimizer"):
        for _ in range(tensors):
            for kernel in kernels.split():
                program.op(kernel, "optimizer", (kernel, 30))
    return program.graph(**metadata)


def of_adam(kernels="aten::mul_ aten::add_"):
    return per_parameter(kernels=kernels, **ADAM_OF_1000)


def of_sgd():
    sgd = {"optimizers": [{"name": "SGD", "groups": [{"tensors": 2, "elements": 1000, "settings": {}}]}]}
    return per_parameter(kernels="aten::add_", **sgd)


# What a trace tells


# Fused


def test_fused_goes_by_bytes_where_the_parameters_are_known():
    # 28 B for each of 1,000 parameters, at the rate of a copy of 2 x 1 MiB in 2**20 ns, 2 B/ns: 14,000 ns,
    # but never more than the 40 separate kernels of 30 ns. At 100 B/ns: 280 ns.
    for copy_ns, expected in ((2**20, 40 * 30), (2 * 2**20 / 100, 280)):
        graph = per_parameter(tensors=20, **ADAM_OF_1000)
        copied(graph, copy_ns)
        fused_optimizer(graph)
        assert graph.select(name="fused").duration_ns.tolist() == [expected]
        walk = graph.select(name="Python")
        assert walk.duration_ns.tolist() == [21_000 + 2 * 4_000]


def copied(graph, duration_ns):
    graph.insert(
        COPY, kind="memcpy", lane="stream 7", duration_ns=duration_ns,
        before=[kernels(graph).first()], phase="forward", bytes=2**20,
    )  # fmt: skip


ADD, ROOT = (f"at::native::vectorized_elementwise_kernel<4, {name}>" for name in ("add", "sqrt"))
NEWER = "at::native::unrolled_elementwise_kernel<copy, std::array<char*, 2ul>, 4, Calculator<1>>"


def of_unknown_shapes(*kernels, older=True):
    """Return an Adam's update with operators that have no shapes: (kernel, blocks, ns) one by one."""
    program = Program()
    program.op("aten::copy_", "forward", ("gemm" if older else NEWER, 20))
    with program.range("Optimizer.step#Adam.step", phase="optimizer"):
        for name, _, duration in kernels:
            program.op("aten::add_", "optimizer", (name, duration))
    rows = [row for row in program.rows if row["kind"] == "kernel" and row["phase"] == "optimizer"]
    for row, (_, blocks, _) in zip(rows, kernels, strict=True):
        row["grid"] = blocks
    return program.graph()


@pytest.mark.parametrize(("older", "each"), [(True, 4), (False, 8)])
def test_without_shapes_the_grids_of_the_updates_kernels_tell_its_parameters(older, each):
    # 2,000 and 10 blocks of 128 threads: each of 4 elements, since torch 2.7 of 8
    passes = [(ADD, "2000,1,1", 30_000_000), (ADD, "10,1,1", 200), (ROOT, "2000,1,1", 30_000_000)]
    graph = of_unknown_shapes(*passes, (ROOT, "10,1,1", 200), older=older)
    copied(graph, 2**20)
    assert update_of(graph).elements == 2010 * 128 * each
    time = 28 * 2010 * 128 * each / memory_bandwidth(graph)
    fused_adam(graph)
    assert graph.select(name="fused").duration_ns.tolist() == [round(time)]


def test_on_a_cpu_the_operators_of_the_update_become_one():
    # Two operators of 40 ns, 7 ns of Python: they take the sum where nothing is known of their bytes.
    graph = Graph()
    for name, phase, duration in (
        ("mm", "backward", 100),
        ("add_", "optimizer", 40),
        ("mul_", "optimizer", 40),
    ):
        put(graph, name, "main", duration, gap_ns=7, phase=phase, op=name, step=0)
    assert makespan(graph) == 100 + 7 + 40 + 7 + 40
    fused_optimizer(graph)
    assert makespan(graph) == 100 + 7 + 80
    assert len(graph.select(phase="optimizer")) == 1


# Foreach


def test_foreach_on_a_cpu_leaves_the_operators_and_takes_pythons_time():
    graph = Graph()
    for name, duration in (("aten::add_", 40), (None, 25), ("aten::mul_", 40)):
        put(graph, "x", "main", duration, gap_ns=7, phase="optimizer", op=name, step=0)
    foreach_optimizer(graph)
    assert makespan(graph) == 80


# Offload


def test_an_offloaded_update_is_copies_and_a_pass_over_memory_on_the_cpu():
    # 10^6 parameters of 4 B: to the CPU 4 MB at 40 B/ns = 100 us, behind the gemm that ends at
    # 2 + 4 + 20 = 26; update 28 MB at 100 B/ns = 280 us, and Python 21,000 + 2 x 4,000; 4 ns to launch,
    # back 100 us.
    graph = per_parameter(**ADAM_OF_A_MILLION)
    graph.facts.launch_cost_ns, graph.facts.launch_latency_ns = 6, 4
    offload_optimizer(graph, bandwidth=40.0, cpu_bandwidth=100.0)
    assert makespan(graph) == 26 + 100_000 + 280_000 + 29_000 + 4 + 100_000
    assert set(kernels(graph).phase) == {"backward"}


# Gradients set to None


def with_zero_grad(passes=1):
    """Two tensors: fills of 30 ns, then backward passes that add 30 ns to each gradient."""
    program = Program()
    with program.range("Optimizer.zero_grad#SGD.zero_grad", phase="other"):
        for _ in range(2):
            with program.range("aten::zero_", "operator", phase="other", op="aten::zero_"):
                program.op("aten::fill_", "other", ("fill", 30))
    for _ in range(passes):
        for _ in range(2):
            program.op("aten::mm", "backward", ("gemm", 50))
            with program.range("torch::autograd::AccumulateGrad", "operator", phase="backward"):
                program.op("aten::add_", "backward", ("add", 30))
    return program.graph()


def test_real_changes_can_be_made_and_undone():
    torch = pytest.importorskip("torch")
    fused, foreach, none = (find(name) for name in ("fused-optimizer", "foreach-optimizer", "zero-grad-none"))
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], foreach=False)
    weight.grad = torch.ones(3)
    with fused.apply(optimizer=optimizer):
        assert optimizer.param_groups[0]["fused"] is True
        optimizer.step()
    with foreach.apply(optimizer=optimizer):
        assert optimizer.param_groups[0]["foreach"] is True
        optimizer.step()
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (None, False)
    del optimizer.param_groups[0]["fused"]
    with fused.apply(optimizer=optimizer):
        assert optimizer.param_groups[0]["fused"] is True
    assert "fused" not in optimizer.param_groups[0]
    optimizer.param_groups[0]["fused"] = None
    with none.apply(optimizer=optimizer):
        optimizer.zero_grad(set_to_none=False)
    assert weight.grad is None
    assert "zero_grad" not in vars(optimizer)


@pytest.mark.parametrize(
    ("name", "fused", "foreach"),
    [("Adam", True, True), ("SGD", True, True), ("RMSprop", False, True), ("LBFGS", False, False)],
)
def test_an_implementation_that_a_class_does_not_take_is_no_advice(name, fused, foreach):
    metadata = {"optimizers": [{"name": name, "groups": [{"tensors": 2, "elements": 1000}]}]}
    for setting, taken, change in (
        ("fused", fused, fused_optimizer), ("foreach", foreach, foreach_optimizer)
    ):  # fmt: skip
        graph = per_parameter(**metadata)
        if taken:
            change(graph)
        else:
            with pytest.raises(NotApplicableError, match=f"torch.optim.{name} takes no `{setting}`"):
                change(graph)


# What torch's classes can be asked for


@pytest.mark.parametrize("name", ["Shampoo", "SGD"])
def test_an_update_that_multiplies_matrices_has_no_fused_kernel(name):
    work = "aten::mul_ aten::mm aten::add_"
    graph = per_parameter(tensors=1, kernels=work, optimizer=name)
    if name == "SGD":  # it is known to go element by element: the product is its closure's
        fused_optimizer(graph)
        return
    assert update_of(graph).kind is None
    for change in (fused_optimizer, fused_adam, foreach_optimizer):
        does_not_apply(r"multiplies matrices \(Shampoo\)", change, graph)
    fused_optimizer(graph, kind="adamw")  # another one in its place


def test_the_table_of_what_classes_take_is_that_of_torch():
    import inspect

    optim = pytest.importorskip("torch.optim")
    for name, takes in TAKES.items():
        known = inspect.signature(getattr(optim, name)).parameters
        assert set(takes) == {"fused", "foreach"} & set(known), name


def test_bandwidths_are_those_of_the_trace():
    graph = thread_and_stream((COPY, 1000, "forward"), ("Memcpy HtoD (Pinned -> Device)", 2**20, "forward"))
    graph.select(kind="memcpy").set(bytes=[2**20, 12 * 2**20])
    # Read and written: twice the bytes.
    assert memory_bandwidth(graph) == pytest.approx(2 * 2**20 / 1000)
    assert link_bandwidth(graph, "HtoD") == pytest.approx(12)
    assert link_bandwidth(graph, "DtoH") is None


test_other_updates = answers(
    globals(),
    {
        #  thread  |mm 10|launch 6|        stream 7  2+4|gemm 20|fused 4 x 30|
        "fused takes the sum of the kernels where bytes are unknown": (
            "per_parameter",
            "fused-adam",
            "146 to 146, CPU 16, 2 launches: gemm 20, fused optimizer 120",
            "not Adam",
        ),
        "fills and first additions go with their operators": (
            "with_zero_grad",
            "zero-grad-none",
            "226 to 106, CPU 20, 2 launches: gemm 50, gemm 50",
        ),
        "additions of later passes stay": (
            "with_zero_grad passes=3",
            "zero-grad-none",
            (
                "546 to 426, CPU 100, 10 launches: gemm 50, gemm 50, gemm 50, add 30, gemm 50, add 30, "
                "gemm 50, add 30, gemm 50, add 30"
            ),
        ),
        # 10 kernels of 30 ns become 2 x 2, of 4 tensors and of one. A kernel here costs 25 ns at least,
        # the 5th percentile of 20 and ten times 30: 3 of 5 go of each operator.
        "foreach keeps an operator and a launch for each kind of kernel": (
            "per_parameter tensors=5",
            "foreach-optimizer tensors_per_kernel=4",
            (
                "326 to 176, CPU 42, 5 launches: gemm 20, multi_tensor_apply 38, multi_tensor_apply "
                "37, multi_tensor_apply 38, multi_tensor_apply 37"
            ),
        ),
    },
)

test_updates_that_stay_are_refused = refusals(globals())
