"""Small training programs, each built so that one mechanism of the machine decides its step time.

All of them run the same network on CPU threads as PyTorch does: forward operators on the main
thread, backward on the autograd thread, the optimizer on main. Durations are uneven on
purpose: a queue that is full behind long kernels drains behind short ones.
"""

from dataclasses import dataclass

from .engine import Machine, Program
from .instructions import (
    annotation,
    backward,
    cpu,
    device_sync,
    event_sync,
    free,
    graph_launch,
    launch,
    memcpy,
    memset,
    op,
    put,
    python,
    query,
    record,
    sleep,
    stream_sync,
    take,
    wait,
)

COMPUTE, COPY, COLLECTIVE, NCCL_INTERNAL = 7, 20, 40, 44
US = 1_000
GEMM = "ampere_sgemm_128x64_tn"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float> >(int, float*)"
RELU = ELEMENTWISE.format("relu_functor")
RELU_GRAD = ELEMENTWISE.format("threshold_functor")
ADD = ELEMENTWISE.format("CUDAFunctor_add")
LOSS = "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>(float*, float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
JITTER = 0.01


@dataclass(frozen=True)
class Network:
    """A stack of linear + ReLU layers; `matrix_ns` is the mean duration of a matrix kernel."""

    layers: int
    matrix_ns: int

    def matrix(self, layer):
        return self.matrix_ns * (2 + layer % 5) // 4  # 0.5 to 1.5 of the mean, different from layer to layer

    @property
    def small(self):
        return 2 * US + self.matrix_ns // 20

    def forward(self, step):
        program = []
        for layer in range(self.layers):
            linear, relu = _sequence(step, 2 * layer), _sequence(step, 2 * layer + 1)
            program += [
                python(5 * US),
                op("aten::linear", 2_100, [
                    op("aten::t", 1_400, [cpu("aten::transpose", 1_700)], 600),
                    op("aten::addmm", 4_300, [launch(COMPUTE, GEMM, self.matrix(layer))], 1_200),
                ], 1_600, args={**linear, "Fwd thread id": 0}),
                python(3 * US),
                op("aten::relu", 1_900, [
                    op("aten::clamp_min", 2_200, [launch(COMPUTE, RELU, self.small)], 900),
                ], 700, args={**relu, "Fwd thread id": 0}),
            ]  # fmt: skip
        return program

    def loss(self):
        return [op("aten::nll_loss", 5_100, [launch(COMPUTE, LOSS, self.small)], 1_300)]

    def gradients(self, step, ready=lambda _layer: ()):
        """The backward program; `ready(layer)` runs when a layer has its gradient."""
        program = []
        for layer in reversed(range(self.layers)):
            linear, relu = _sequence(step, 2 * layer), _sequence(step, 2 * layer + 1)
            matrix = self.matrix(layer)
            program += [
                _evaluate("ReluBackward0", relu, [
                    op("aten::threshold_backward", 3_300, [launch(COMPUTE, RELU_GRAD, self.small)], 800)]),
                _evaluate("AddmmBackward0", linear, [
                    op("aten::mm", 4_100, [launch(COMPUTE, GEMM, matrix)], 1_100),
                    op("aten::mm", 3_700, [launch(COMPUTE, GEMM, matrix)], 1_100),
                ]),
                op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1_800, [
                    op("torch::autograd::AccumulateGrad", 1_500, [cpu("aten::detach", 1_300)], 500),
                    *ready(layer),
                ], 900),
                python(1_200),
            ]  # fmt: skip
        return program

    def optimizer(self):
        update = op("aten::add_", 3_600, [launch(COMPUTE, ADD, self.small)], 700)
        return annotation("Optimizer.step#SGD.step", [python(1_700), update] * self.layers, 6_000)

    def zero_grad(self):
        return annotation("Optimizer.zero_grad#SGD.zero_grad", [
            op("aten::zero_", 1_500, [memset(COMPUTE, 1_900, 65_536)], 600) for _ in range(2)
        ], 2_000)  # fmt: skip

    def step(self, step):
        """A whole step with no synchronization."""
        return [python(20 * US), self.zero_grad(), *self.forward(step), *self.loss(),
                backward(self.gradients(step)), self.optimizer()]  # fmt: skip


def _sequence(step, number):
    return {"Sequence number": 1000 * step + number}


def _evaluate(name, sequence, children):
    args = {**sequence, "Fwd thread id": 1}
    inner = op(name, 1_600, children, 800, args=args)
    return op(f"autograd::engine::evaluate_function: {name}", 2_300, [inner], 1_100, args=args)


def item():
    """`.item()`: a pageable copy that blocks, then a stream synchronize that finds nothing to do."""
    return op("aten::item", 1_200, [op("aten::_local_scalar_dense", 2_100, [
        memcpy(COMPUTE, "dtoh_pageable", 1_300, 4), stream_sync(COMPUTE)], 700)], 500)  # fmt: skip


def cpu_bound(layers=16, kernel_us=4):
    """Launching takes longer than the kernels: the GPU waits for the CPU.

    One operator launches two kernels, the second behind the first: without any such pair a
    trace cannot show what back-to-back kernels cost each other.
    """
    net = Network(layers, kernel_us * US)
    norm = op("aten::linalg_vector_norm", 2_400, [
        launch(COMPUTE, LOSS, 40 * US), launch(COMPUTE, ADD, net.small)], 900)  # fmt: skip
    return Machine(Program(lambda step: [*net.step(step), norm]), jitter=JITTER)


def gpu_bound(layers=16, kernel_us=90):
    """The CPU runs ahead and waits once a step for the loss, so the queue never fills."""
    net = Network(layers, kernel_us * US)
    return Machine(Program(lambda step: [*net.step(step), item()]), jitter=JITTER)


def queue_full(depth=32, layers=16, kernel_us=90):
    """The CPU runs ahead until the launch queue is full, and then blocks inside launches."""
    return Machine(Program(Network(layers, kernel_us * US).step), queue_depth=depth, jitter=JITTER)


def synchronizing(layers=20, kernel_us=40):
    """Blocking copies, a stream, an event and a device synchronize and a `cudaFree` in every step."""
    net = Network(layers, kernel_us * US)

    def step(number):
        forward = net.forward(number)
        return [
            python(30 * US),
            op("aten::copy_", 3_000, [memcpy(COMPUTE, "htod_pageable", 14 * US, 262_144)], 900),
            net.zero_grad(),
            *forward[: len(forward) // 2],
            item(),
            *forward[len(forward) // 2 :],
            record("forward done", COMPUTE),
            *net.loss(),
            python(25 * US),
            event_sync("forward done"),
            python(15 * US),
            backward(net.gradients(number)),
            op("aten::empty", 2_400, [free()], 800),
            python(12 * US),
            op("aten::linalg_vector_norm", 4_000, [launch(COMPUTE, LOSS, 6 * US)], 900),
            item(),
            net.optimizer(),
            stream_sync(COMPUTE),
            python(18 * US),
            device_sync(),
        ]

    return Machine(Program(step), jitter=JITTER)


def multi_stream(layers=12, kernel_us=60, collective_us=260):
    """Data parallel: gradients are reduced in buckets beside the backward pass, batches are prefetched."""
    net = Network(layers, kernel_us * US)
    bucket = 3  # layers

    def all_reduce(layer):
        if layer % bucket:
            return []
        name = f"bucket {layer // bucket}"
        return [op("c10d::allreduce_", 9_000, [op("record_param_comms", 6_000, [
            record(f"{name} ready", COMPUTE),
            wait(COLLECTIVE, f"{name} ready"),
            annotation("nccl:all_reduce", [
                record("nccl begin", COLLECTIVE), wait(NCCL_INTERNAL, "nccl begin"),
                launch(COLLECTIVE, ALL_REDUCE, collective_us * US, **_collective(4_194_304)),
                record("nccl end", COLLECTIVE), wait(NCCL_INTERNAL, "nccl end"),
            ], 3_000),
            record(f"{name} reduced", COLLECTIVE),
        ], 2_500)], 3_000)]  # fmt: skip

    def reduced(layer):
        return [
            wait(COMPUTE, f"bucket {layer // bucket} reduced"),
            op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 2_600, [
                op("aten::copy_", 2_000, [memcpy(COMPUTE, "dtod", 9 * US, 16_777_216)], 700)], 600),
        ]  # fmt: skip

    def prefetch():
        return op("aten::to", 3_000, [memcpy(COPY, "htod_pinned", 700 * US, 19_267_584)], 1_500)

    def step(number):
        first = [prefetch()] if number == 0 else []
        finish = [i for layer in reversed(range(0, layers, bucket)) for i in reduced(layer)]
        return [
            *first,
            record("batch copied", COPY),
            wait(COMPUTE, "batch copied"),
            net.zero_grad(),
            *net.forward(number),
            record("batch used", COMPUTE),
            wait(COPY, "batch used"),
            prefetch(),
            *net.loss(),
            backward([*net.gradients(number, all_reduce), *finish]),
            net.optimizer(),
            item(),
        ]

    return Machine(Program(step), jitter=JITTER)


def _collective(elements):
    return {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": 8, "dtype": "Float", "Process Group Name": "0",
            "Process Group Description": "default_pg"}  # fmt: skip


def multi_thread(layers=12, kernel_us=30, loader_us=1_200, poll_us=370):
    """Main, autograd, a loader thread that hands over batches (two ahead), and a watchdog that polls."""
    net = Network(layers, kernel_us * US)

    def step(number):
        room = [put("room") for _ in range(2 if number == 0 else 0)]
        batch = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                           [take("batch"), put("room"), python(9 * US)], 4 * US)  # fmt: skip
        upload = op("aten::to", 3_000, [memcpy(COMPUTE, "htod_pinned", 40 * US, 1_048_576)], 1_500)
        return [*room, batch, upload, *net.step(number), item()]

    def loader():
        while True:
            yield take("room")
            for _ in range(16):
                yield op("aten::stack", 2 * US, [cpu("aten::cat", loader_us * US // 20)], 1 * US)
                yield python(3 * US)
            yield op("aten::pin_memory", 8 * US, [cpu("aten::copy_", loader_us * US // 20)], 4 * US)
            yield put("batch")

    def watchdog():
        while True:
            yield query()
            yield sleep(poll_us * US)

    return Machine(Program(step, {"loader": loader, "watchdog": watchdog}), jitter=JITTER)


def graphs(kernels=120, kernel_us=14, depth=0):
    """A captured step is replayed; with a queue depth no step synchronizes, and graph launches block."""
    nodes = [(GEMM if node % 3 else RELU, kernel_us * US * (2 + node % 5) // 4) for node in range(kernels)]

    def step(_number):
        inputs = op("aten::copy_", 3_000, [memcpy(COMPUTE, "htod_pinned", 20 * US, 262_144)], 900)
        tail = [] if depth else [item()]
        return [python(60 * US), inputs, python(8 * US), graph_launch(COMPUTE, nodes), python(25 * US), *tail]

    return Machine(Program(step), queue_depth=depth or 1022, jitter=JITTER)


PROGRAMS = {
    "cpu_bound": cpu_bound,
    "gpu_bound": gpu_bound,
    "queue_full_16": lambda: queue_full(16),
    "queue_full_64": lambda: queue_full(64),
    "queue_full_1022": lambda: queue_full(1022, 36),
    "synchronizing": synchronizing,
    "multi_stream": multi_stream,
    "multi_stream_collective_bound": lambda: multi_stream(collective_us=1_300),
    "multi_thread": multi_thread,
    "multi_thread_slow_watchdog": lambda: multi_thread(poll_us=900),
    "multi_thread_loader_bound": lambda: multi_thread(loader_us=5_000),
    "graphs": graphs,
    "graphs_queue_full": lambda: graphs(depth=6),
}
