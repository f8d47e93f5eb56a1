"""A GPU that does not exist: what runs on it, what it holds, what its kernels take."""

import copy

import numpy as np
import pytest
from graph.small_traces import launched, op, row, trace
from shared import ROOT

import daydream
from daydream.costs.devices import find_device
from daydream.errors import NotApplicableError

torch = pytest.importorskip("torch")
emulate = pytest.importorskip("daydream.world.emulate")
costs = pytest.importorskip("daydream.world.emulate_costs")
H100 = find_device("h100")


@pytest.fixture
def gpu():
    """Return an H100 that this test's tensors are on."""

    with emulate.emulated("h100") as found:
        yield found


def product(m, k, n, kind="bfloat16", nbytes=1):
    """Return a product of matrices of m x k and k x n."""
    return emulate.Call("aten::mm", [(m, k), (k, n)], [kind] * 2, [(m, n)], nbytes=nbytes, number_format=kind)


def observed(gpu, function):
    gpu.calls, gpu.memory = [], []
    with torch.profiler.profile():
        function()
    return gpu.calls


def of_name(calls, name):
    return [call for call in calls if call.name == f"aten::{name}"]


def test_a_layer_is_noted_with_its_products_and_its_memory(gpu):
    layer = torch.nn.Linear(1024, 4096).to("cuda")
    x = torch.randn(256, 1024, device="cuda")
    before = gpu.held_bytes
    calls = observed(gpu, lambda: layer(x).sum().backward())
    assert str(layer.weight.device) == "cuda:0"

    assert before == emulate.WORKSPACE + 4 * (1024 * 4096 + 4096 + 256 * 1024)
    [forward] = of_name(calls, "addmm")
    assert forward.results == [(256, 4096)]
    assert gpu.memory[0][1] == 4 * 256 * 4096
    [gradient] = of_name(calls, "mm")  # of the weight alone: the input needs none
    assert sorted(gradient.results[0]) == [1024, 4096]


def test_autocast_and_attention_are_those_of_cuda(gpu):
    x = torch.randn(2, 4, 64, 64, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            heads = (x @ x).softmax(-1).bfloat16()
            torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)

    calls = observed(gpu, step)

    assert of_name(calls, "bmm")[0].dtypes == ["bfloat16", "bfloat16"]
    assert of_name(calls, "_to_copy")[-1].dtypes == ["float32"]  # of the softmax; the CPU's list has 16 bits
    assert of_name(calls, "_scaled_dot_product_cudnn_attention")


def test_a_loss_under_autocast_is_of_32_bits_as_cuda_casts_it(gpu):
    def step():
        with torch.autocast("cuda", torch.bfloat16):
            torch.nn.functional.cross_entropy(scores.bfloat16(), targets)

    scores, targets = torch.randn(8, 16, device="cuda"), torch.randint(16, (8,), device="cuda")
    calls = observed(gpu, step)
    assert of_name(calls, "_to_copy")[-1].dtypes == ["bfloat16"]  # logarithms; on an H200, too
    assert of_name(calls, "nll_loss_forward")[0].dtypes[0] == "float32"


def test_a_number_that_nobody_knows_is_plausible_and_counted(gpu):
    loss = torch.randn(8, device="cuda").sum()
    assert loss.item() == 1.0
    assert not loss.isnan()
    assert loss.isfinite()
    assert gpu.read == 3


def test_a_product_takes_its_flop_at_a_part_of_the_peak():
    rows, inner, columns = 132 * 128, 4096, 1024  # tiles of 128 x 128 in whole waves of 132 units
    nbytes = 2 * (rows * inner + inner * columns + rows * columns)
    call = product(rows, inner, columns, nbytes=nbytes)
    half = costs.Learned(kernels=1, of_peak=0.5, of_bandwidth=1.0)
    expected = 1_400 + 2 * rows * inner * columns / (989.4e3 * 0.5)
    assert costs.roofline_ns(call, H100, half) == pytest.approx(expected)


def test_causal_attention_computes_its_blocks_on_and_under_the_diagonal(gpu):
    def step(causal):
        q = torch.randn(1, 2, 1024, 64, device="cuda", dtype=torch.bfloat16)
        attend = torch.nn.functional.scaled_dot_product_attention
        calls = observed(gpu, lambda: attend(q, q, q, is_causal=causal))
        [call] = of_name(calls, "_scaled_dot_product_cudnn_attention")
        return costs.work(call)[0]

    whole = 2 * 2 * 1024 * 1024 * (64 + 64)
    assert step(causal=False) == whole
    assert step(causal=True) == whole * 9 // 16  # 8 x 8 blocks of 128, 36 of them


def test_what_needs_values_is_refused_and_files_stay(tmp_path, gpu):
    file = tmp_path / "checkpoint.pt"
    file.write_text("of an earlier run")
    x = torch.ones(8, 8, device="cuda")
    torch.save({"x": x}, file)
    assert torch.compile(torch.nn.ReLU())(x).shape == (8, 8)
    held = gpu.held_bytes
    del x
    assert torch.cuda.max_memory_allocated() >= held > torch.cuda.memory_allocated()
    with pytest.raises(SystemExit, match=r"needs values of tensors.*aten::nonzero"):
        torch.ones(8, device="cuda").nonzero()
    assert file.read_text() == "of an earlier run"
    assert list(gpu.left_out) == [
        "torch.save wrote nothing",
        "torch.compile was left out, and the program ran as without it",
    ]


def test_an_unknown_gpu_is_refused():
    with pytest.raises(NotApplicableError, match="unknown GPU"), emulate.emulated("h999"):
        pass


def test_a_recurrent_layer_is_one_operator_of_cudnn(gpu):
    def step():
        result, _ = layer(x)
        result.sum().backward()

    layer = torch.nn.LSTM(64, 128, num_layers=2, batch_first=True).to("cuda")
    x = torch.randn(8, 10, 64, device="cuda")
    calls = observed(gpu, step)
    [forward], [backward] = of_name(calls, "_cudnn_rnn"), of_name(calls, "_cudnn_rnn_backward")
    gates_and_cells = 2 * 5 * 128
    between = 128
    assert forward.results[3] == (8 * 10 * (gates_and_cells + between) * 4,)  # bytes, kept for backward
    assert backward.results[3:5] == [(512, 64), (512, 128)]
    # Two layers of ten steps, each two kernels of a product and its cell; eight more a layer, or sixteen.
    count = [len(costs.kernels_of(call, H100)) for call in (forward, backward)]
    assert count == [2 * (3 * 10 + 8), 2 * (3 * 10 + 16)]


def test_packed_sequences_are_as_long_as_they_are(gpu):
    from torch.nn.utils import rnn

    x = torch.randn(3, 9, 8, device="cuda")
    packed = rnn.pack_padded_sequence(x, torch.tensor([9, 3, 5]), True, False)
    assert packed.data.shape == (9 + 3 + 5, 8)
    result, _ = torch.nn.GRU(8, 16, bidirectional=True, device="cuda")(packed)
    padded, _ = rnn.pad_packed_sequence(result, batch_first=True)
    padded.sum().backward()
    assert padded.shape == (3, 9, 32)


def test_copies_are_read_once_and_written_once(gpu):
    x, y = torch.randn(2, 256, 4, device="cuda")
    [copied, filled] = observed(gpu, lambda: x.copy_(y).fill_(1))
    assert (copied.nbytes, filled.nbytes) == (2 * 4096, 4096)


def test_views_of_a_copied_layer_take_no_memory(gpu):
    layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    before = gpu.held_bytes
    twin = copy.deepcopy(layer)
    assert gpu.held_bytes == before + 4 * 1024 * 1024
    assert twin.weight.t().shape == (1024, 1024)
    assert gpu.held_bytes == before + 4 * 1024 * 1024
    assert isinstance(twin.weight, torch.nn.Parameter)


def test_convolutions_ask_for_what_their_layout_or_winograd_needs(gpu):
    def lent(*sizes, tf32):
        torch.backends.cudnn.allow_tf32 = tf32
        convolution = torch.nn.Conv2d(*sizes, padding=sizes[2] // 2, bias=False).to("cuda")
        with torch.no_grad():
            gpu.forget_peak()
            kept = convolution(x)
            return gpu.peak_bytes - gpu.held_bytes if len(kept) else 0

    x = torch.randn(2, 16, 32, 32, device="cuda")
    assert lent(16, 32, 1, tf32=True) == 4 * 2 * (16 + 32) * 32 * 32  # input and result, channels last
    tiles = 8 * 8
    assert lent(16, 32, 3, tf32=False) == 4 * 36 * (2 * (16 + 32) * tiles + 16 * 32)


def test_an_ada_card_is_of_its_compute_capability():
    for name, capability in (("rtx 4090", (8, 9)), ("a10", (8, 6)), ("b200", (10, 0)), ("t4", (7, 5))):
        with emulate.emulated(name):
            assert torch.cuda.get_device_capability() == capability


def test_measured_products_count_instead_of_the_roofline(monkeypatch):
    asked = []

    def measured(device, operation, dtype, sizes):
        asked.append((device.name, operation, dtype, sizes.tolist()))
        return np.array([7_000.0]), np.array([0.1])

    costs._known_ns.cache_clear()
    monkeypatch.setattr(costs, "measured_ns", measured)
    [kernel] = costs.kernels_of(product(64, 32, 16), H100)
    assert (kernel.duration_ns, kernel.measured) == (7_000, True)
    assert asked == [("H100 SXM", "gemm", "bfloat16", [[64, 16, 32]])]
    assert not costs.kernels_of(product(64, 32, 16, "float32"), H100)[0].measured
    costs._known_ns.cache_clear()


def test_short_attention_reaches_less_of_the_peak_than_long():
    share = costs.Learned(kernels=0, of_peak=0.8)
    for length, blocks in ((256, 2), (8192, 64)):
        size = (4, 16, length, 128)
        call = emulate.Call("aten::_scaled_dot_product_flash_attention", [size] * 3, ["bfloat16"], [size])
        call.number_format = "bfloat16"
        scores = 4 * 16 * length * length
        products = 4 * 128 * scores / (989.4e3 * 0.8)
        exponentials = scores / (16 * 1.7 * 132)
        expected = (products**2 + exponentials**2) ** 0.5 + 4 * 16 * blocks * 4_000 / 132
        assert costs.roofline_ns(call, H100, share) == pytest.approx(expected)


def test_the_cpu_of_a_recording_is_what_its_steps_take_where_they_wait_for_it():
    from daydream.world.cpu import CPU_NS, find_cpu, own_cpu, recorded_times, some_cpu

    def step(at):
        #  thread |layer 100: operator 100|, GPU |kernel 60|
        layer = row("module", "layer", at, at + 100, pid=100, tid=1)
        return [layer, op("aten::mm", at, at + 100), *launched("gemm", at + 20, at + 30, at + 90)]

    rows = [each for at in range(0, 400, 100) for each in step(at)]
    graph = daydream.build(trace(*rows, steps=(0, 100, 200, 300, 400)))
    times = recorded_times(graph, 100_000)
    assert times == pytest.approx(100_000 / sum(CPU_NS.values()), rel=0.01)
    found = own_cpu([1.0, 3.0, 2.0], 4.0)
    assert (found["times"], found["other_cpus"][0]) == (2.0, pytest.approx(4 ** (4 / 3) ** 0.5))
    assert some_cpu("slow", 2.0) == {"cpu": "slow", "times": 2.0, "other_cpus": [0.5]}
    assert some_cpu("typical", 2.0)["other_cpus"] == [2.0, 0.5]
    with pytest.raises(NotApplicableError, match="of steps that wait for the CPU"):
        recorded_times(graph, 120_000)  # the GPU
    # Without the profiler the CPU decides this step; its host takes 0.74 to 0.84 for other programs.
    recording = ROOT / "validation/h200/gpt_small.parquet"
    assert 0.7 < find_cpu([str(recording)], daydream.replay)["times"] < 0.9
