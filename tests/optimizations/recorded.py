"""Recordings written down call by call: one thread, operators one after the other; times in whole ns.

    with program.range("Optimizer.step#SGD.step"):
        program.op("aten::add_", "optimizer", ("add kernel", 30))

An operator takes 2 ns, a launch of 6 ns for each of its kernels, and 2 ns again; a kernel
starts 4 ns after its launch began, or behind the one before on its stream.
"""

import ast
import json
import re
import shlex
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from daydream.optimizations.ddp import ddp
from graph.small_graphs import put
from graph.small_traces import columns_of, dims

from daydream import Graph, GraphError, NotApplicableError, Trace, simulate
from daydream.graph.build import build
from daydream.graph.tables import Lane
from daydream.transforms.compose import apply, parse

HEAD, LAUNCH, LATENCY = 2, 6, 4
ONE = 4000 / 2**20  # MiB: a bucket is full with one gradient
GRADIENTS = {"HALF": ONE / 2, "ONE": ONE, "TWO": 2 * ONE}
SMALLEST = 5  # ns of a kernel that is all fixed cost


class Program:
    def __init__(self):
        self.rows = []
        self.now = 0
        self.free = 0
        self.open = []
        self.step = 0

    def row(self, kind, name, start, duration, **columns):
        host = (
            {"pid": 1, "tid": 1, "parent": self.open[-1] if self.open else -1}
            if "stream" not in columns
            else {}
        )
        self.rows.append(
            {"kind": kind, "name": name, "start_ns": start, "duration_ns": duration, "rank": 0,
             "step": self.step, **host, **columns}
        )  # fmt: skip
        return len(self.rows) - 1

    @contextmanager
    def range(self, name, kind="annotation", **columns):
        number = self.row(kind, name, self.now, 0, **columns)
        self.open.append(number)
        yield
        self.open.pop()
        self.rows[number]["duration_ns"] = self.now - self.rows[number]["start_ns"]

    def op(
        self,
        name,
        phase,
        *kernels,
        shapes=None,
        dtype="float32",
        layer=None,
    ):
        text = None if shapes is None else json.dumps(dims(shapes))
        with self.range(name, "operator", phase=phase, op=name, shapes=text, dtype=dtype, layer=layer):
            self.now += HEAD
            for kernel, duration in kernels:
                call = self.row(
                    "runtime",
                    "cudaLaunchKernel",
                    self.now,
                    LAUNCH,
                    correlation=len(self.rows),
                    phase=phase,
                    op=name,
                    layer=layer,
                )
                start = max(self.now + LATENCY, self.free)
                kind = "memcpy" if kernel.startswith("Memcpy") else "kernel"
                self.row(
                    kind, kernel, start, duration, device=0, stream=7,
                    correlation=self.rows[call]["correlation"], parent=call, phase=phase, op=name,
                    dtype=dtype, layer=layer,
                )  # fmt: skip
                self.now += LAUNCH
                self.free = start + duration
            self.now += HEAD

    def host(self, name, phase, ns, *, shapes=None, **columns):
        """Run an operator that takes so many ns of the CPU."""
        text = None if shapes is None else json.dumps(dims(shapes))
        known = {"op": name, "shapes": text, "dtype": "float32", **columns}
        with self.range(name, "operator", phase=phase, **known):
            self.now += ns

    def rates(self, streaming=80_000):
        """Run what tells a device's rates: 60 kernels of 5 ns, and 8,000,000 B that stream in so many ns."""
        for _ in range(60):
            self.op("aten::empty_kernel", "other", ("tiny", SMALLEST))
        relu = "vectorized_elementwise_kernel relu", streaming + SMALLEST
        self.op("aten::relu", "other", relu, shapes="1000000")

    def graph(self, **metadata):
        end = max(self.now, self.free)
        steps = [
            {"name": "step 0", "rank": 0, "start_ns": 0, "end_ns": end, "covered": True, "measured_ns": end}
        ]
        columns, texts = columns_of(self.rows)
        graph = build(Trace(columns, texts, {"steps": steps, "vendor": "cuda", **metadata}))
        # Queueing of some nanoseconds cannot be told from the latency of a launch: say which it is.
        if len(device := graph.select(on="gpu")):
            device.set(latency_ns=LATENCY, gap_ns=0)
        graph.facts.launch_latency_ns, graph.facts.launch_cost_ns, graph.facts.startup_ns = LATENCY, LAUNCH, 0
        return graph


def of_calls(*calls, ns=80_000):
    """Return calls (operator, shapes) or `add_ 4x4 4x4 backward`, with a kernel each, mostly forward.

    All kernels are alike, so 5,000 ns of each, the most that can be, count as its fixed cost.
    """
    program = Program()
    for call in calls:
        operator, shapes, *phase = words(call) if isinstance(call, str) else call
        program.op(f"aten::{operator}", *(phase or ["forward"]), (operator, ns), shapes=shapes)
    return program.graph()


def words(call):
    operator, *shapes = call.split()
    phase = [shapes.pop()] if shapes[-1].isalpha() else []
    return [operator, " ".join(shapes), *phase]


def thread_and_stream(*work, latency=4, cost=6):
    """Return a graph whose thread launches kernels: (name, ns, phase), or all as `a 5 forward, b ...`."""
    if work and isinstance(work[0], str):
        work = [task.rsplit(" ", 2) for task in work[0].split(", ")]
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = latency, cost
    put(graph, "begin", "thread 1", 0, step=0, phase="other")
    for name, duration, phase in work:
        kind = "memcpy" if name.startswith("Memcpy") else "kernel"
        graph.insert(
            name, kind=kind, lane="stream 7", duration_ns=int(duration), step=0, phase=phase,
            launch_after=graph.select(kind="cpu").last(),
        )  # fmt: skip
    return graph


def wait_before(graph, call, name="sync", cost=3, **columns):
    """Insert a call before a CPU task that waits for all device work launched before it; return its id."""
    sync = graph.insert_before(call, name, duration_ns=cost, **columns)
    graph.syncs.add(task=sync.ids[0], lane=-1, point=sync.ids[0], latency_ns=0)
    return int(sync.ids[0])


def kernel_ns(graph, **where):
    """Return the durations of kernels, in their order."""
    return list(graph.select(kind="kernel", **where).duration_ns.tolist())


def kernel_names(graph, **where):
    """Return the names of kernels, in their order."""
    return list(graph.select(kind="kernel", **where).name.tolist())


def ns_by_name(graph, **where):
    """Return the duration of the kernel of each name."""
    return dict(zip(kernel_names(graph, **where), kernel_ns(graph, **where), strict=True))


def noted(graph, words):
    """Return whether a note of the graph says this."""
    return any(words in note for note in graph.facts.notes)


def change(graph, text, **more):
    """Apply `ddp workers=2 bandwidth=100.0` to a graph, which is sound afterwards; return the graph."""
    (optimization,), given = _spoken(text)
    apply([optimization], graph, given | more)
    assert graph.lint() == []
    return graph


def _spoken(text):
    """Return the optimizations and the options, of the type that each has, of `NAME OPTION=VALUE ...`."""
    name, *given = shlex.split(re.sub("ONE|TWO|HALF", lambda word: str(GRADIENTS[word[0]]), text))
    found = parse(name)
    types = {option.name: option.type for each in found for option in each.options}
    pairs = (each.split("=", 1) for each in given)
    return found, {
        name: value == "True" if types[name] is bool else types[name](value) for name, value in pairs
    }


REFUSALS = Path(__file__).with_name("refusals.tsv").read_text(encoding="utf-8").splitlines()[1:]


def refusals(builders, *rows):
    """Return the test of rows (change, graph, why not); `!` begins what no trace would make right.

    Those of a file are in `refusals.tsv`. The graph is `BUILDER ARGUMENT ... NAME=VALUE ...` of these
    builders, or a function that makes it. It stays as it was.
    """
    of = Path(builders["__file__"]).stem.removeprefix("test_")
    listed = [row for file, *row in (line.split("\t") for line in REFUSALS) if file == of]

    @pytest.mark.parametrize("row", [*listed, *rows], ids=lambda row: f"{row[0]}: {row[2]}")
    def refused(row):
        text, made, words = row
        graph = built(made, builders) if isinstance(made, str) else made()
        before = makespan(graph)
        with pytest.raises(GraphError, match=words.removeprefix("! ")) as error:
            change(graph, text)
        assert isinstance(error.value, NotApplicableError) != words.startswith("! ")
        assert makespan(graph) == before

    return refused


def answers(builders, rows):
    """Return the test of `{what: (graph, changes, answer, words of notes ...)}`, the answer as of `told`."""

    @pytest.mark.parametrize("row", rows.values(), ids=rows)
    def answer(row):
        text, changes, expected, *notes = row
        graph = built(text, builders)
        before = makespan(graph)
        for each in changes.split("; "):
            change(graph, each)
        assert told(before, graph) == expected
        assert all(noted(graph, words) for words in notes)

    return answer


def times(graph):
    """Return (start, end) of the tasks of each name, in the order they run."""
    timeline = simulate(graph)
    found = {}
    order = np.argsort(timeline.start_ns, kind="stable")
    for place in order.tolist():
        name = timeline.column("name")[place]
        found.setdefault(name, []).append((int(timeline.start_ns[place]), int(timeline.end_ns[place])))
    return found


def ran(graph, text):
    """Return when the tasks that a text names run, as it tells: `push 166-186 226-246, end 246`."""
    found = {name: " ".join(f"{start}-{end}" for start, end in ran) for name, ran in times(graph).items()}
    found["end"] = makespan(graph)
    names = [re.sub(r"( \d+-\d+)+$|(?<=end) \d+$", "", each) for each in text.split(", ")]
    return ", ".join(f"{name} {found[name]}" for name in names)


def timelines(builders, rows):
    """Return the test of `{what: (graph, changes, when tasks run ...)}`, as of `ran`."""

    @pytest.mark.parametrize("row", rows.values(), ids=rows)
    def timeline(row):
        text, changes, *expected = row
        graph = built(text, builders)
        for each in changes.split("; "):
            change(graph, each)
        assert ran(graph, ", ".join(expected)) == ", ".join(expected)

    return timeline


def told(before, graph):
    """Return `90 to 50, CPU 12, 2 launches: mm 30, add 20`: ns of the step, the CPU, and each kernel."""
    work, cpu = graph.select(kind="kernel"), graph.select(kind="cpu")
    spent = cpu.total("duration_ns") + cpu.total("gap_ns")
    kernels = ", ".join(f"{name} {ns}" for name, ns in zip(work.name, work.duration_ns, strict=True))
    return f"{before} to {makespan(graph)}, CPU {spent}, {len(work.launches())} launches: {kernels}"


def built(text, builders):
    """Return the graph of `BUILDER ARGUMENT ... NAME=VALUE ...`; builders of this file need not be given."""
    name, *given = shlex.split(text)
    plain = [_value(each) for each in given if "=" not in each]
    named = dict(each.split("=", 1) for each in given if "=" in each)
    make = builders[name] if name in builders else globals()[name]
    return make(*plain, **{key: _value(value) for key, value in named.items()})


def _value(text):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def does_not_apply(words, optimization, *given, **options):
    """Check that an optimization says in these words why there is nothing to change in a trace."""
    with pytest.raises(NotApplicableError, match=words):
        optimization(*given, **options)


def refuses(words, optimization, *given, **options):
    """Check that an optimization refuses in these words what no trace would make right."""
    with pytest.raises(GraphError, match=words) as refused:
        optimization(*given, **options)
    assert not isinstance(refused.value, NotApplicableError)


def makespan(graph):
    """Return how long the work takes, in ns."""
    return simulate(graph).makespan_ns


# Recorded programs and graphs that the tests of communication share.


GRADIENT = [[10, 100]]  # 1,000 floats, 4,000 B
A100 = {"devices": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}
ONE_UNIT = {"workers": 2, "unit_mb": ONE}  # one gradient of 4,000 B a unit


def reduced():
    """A gradient that is reduced, and the update behind it."""
    #  stream 7   |backward 10|             |update 5|
    #  stream 13              |all-reduce 40|
    graph = Graph()
    backward = put(graph, "backward", "stream 7", 10, phase="backward")
    transfer = graph.insert(
        "all-reduce", kind="collective", lane="stream 13", duration_ns=40, after=[backward]
    )
    put(graph, "update", "stream 7", 5, phase="optimizer", after=[transfer])
    return graph


def layer(
    program, number, *, backward, shapes=GRADIENT, sequences = True,
    on_device = True,
):  # fmt: skip
    """A forward operator of a kernel of 50 ns, or its backward node of 60 ns and the gradient's node."""
    known = {"sequence": 100 * program.step + number} if sequences else {}  # autograd never counts back
    if not backward:
        with program.range("aten::linear", "operator", phase="forward", **known):
            program.op("aten::addmm", "forward", *([(f"forward {number}", 50)] if on_device else []))
        return
    with program.range("AddmmBackward0", "operator", phase="backward", **known):
        program.op("aten::mm", "backward", *([(f"grad {number}", 60)] if on_device else []))
    text = None if shapes is None else json.dumps(dims(shapes))
    with program.range(
        "torch::autograd::AccumulateGrad", "operator", phase="backward", shapes=text, dtype="float32"
    ):
        program.now += 2


def training(
    *,
    steps=1,
    layers=2,
    passes=1,
    shapes=GRADIENT,
    sequences=True,
    uncovered=0,
    **metadata,
):
    """One thread and stream 7; each step ends with an update of 30 ns."""
    program = Program()
    ends = [0]
    for step in range(steps):
        program.step = step
        for _ in range(passes):
            for number in range(layers):
                layer(program, number, backward=False, sequences=sequences)
            for number in reversed(range(layers)):
                layer(program, number, backward=True, shapes=shapes, sequences=sequences)
        with program.range("Optimizer.step#SGD.step", phase="optimizer"):
            program.op("aten::add_", "optimizer", ("update", 30))
        ends.append(program.now)
    return program.graph(steps=steps_between(ends, uncovered), **metadata)


def steps_between(ends, uncovered=0):
    """Return the steps that begin and end at these times, the first of them not covered."""
    return [
        {
            "name": f"step {number}", "rank": 0, "start_ns": begin, "end_ns": end,
            "covered": number >= uncovered, "measured_ns": end - begin,
        }
        for number, (begin, end) in enumerate(pairwise(ends))
    ]  # fmt: skip


def two_layers_on_a_cpu(update="aten::add_", **columns):
    """Forward operators of 50 ns, backward nodes of 60 and 2 for each gradient, an update of 30."""
    program = Program()

    def run(name, phase, duration, **columns):
        with program.range(name, "operator", phase=phase, **columns):
            program.now += duration

    gradient = {"shapes": json.dumps(GRADIENT), "dtype": "float32"}
    for number in (0, 1):
        run("aten::addmm", "forward", 50, sequence=number)
    for number in (1, 0):
        run("AddmmBackward0", "backward", 60, sequence=number)
        run("torch::autograd::AccumulateGrad", "backward", 2, **gradient)
    run(update, "optimizer", 30, **columns)
    return program.graph(vendor="cpu")


def buckets_of(*sizes, duration=1000):
    """Backward kernels of 10 ns, an all-reduce behind each, an update behind the last."""
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = 0, 0
    put(graph, "begin", "thread 1", 0, phase="backward")
    transfers = []
    for place, nbytes in enumerate(sizes):
        made = put(
            graph,
            f"grad {place}",
            "stream 7",
            10,
            phase="backward",
            launch_after=graph.select(kind="cpu").last(),
        )
        transfers.append(
            graph.insert(
                f"all-reduce {place}", kind="collective", lane="stream 13", phase="backward", after=[made],
                duration_ns=duration if isinstance(duration, int) else duration[place],
                collective="all_reduce", bytes=nbytes, dtype="float32",
            )
        )  # fmt: skip
    put(graph, "update", "stream 7", 5, phase="optimizer", after=transfers)
    return graph


def exchanged(**options):
    """One bucket of 8,000 B that takes 80 us, in training on an A100."""
    graph = training(**A100)
    ddp(graph, workers=2, bandwidth=0.1, gradient_as_bucket_view=True, **options)
    return graph


def meeting(operation="all_reduce"):
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals = []
    for rank, work in ((0, 10), (1, 30)):
        lane = graph.add_lane(Lane(f"rank {rank} stream 7", rank, on_device=True))
        graph.insert("k", kind="kernel", lane=lane, duration_ns=work, step=rank)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0, step=rank))
    matched = graph.add_lane(Lane("collectives of the ranks", background=True))
    hub = graph.insert("last arrival", kind="cpu", lane=matched, duration_ns=0, after=arrivals)
    for rank in (0, 1):
        graph.insert(
            operation, kind="collective", lane=f"rank {rank} stream 7", duration_ns=40, after=[hub],
            collective=operation, bytes=8, step=rank,
        )  # fmt: skip
    return graph


def reduce_bucket(program, nbytes, duration):
    call = program.row("runtime", "cudaLaunchKernel", program.now, 6, correlation=1000 + program.now)
    program.rows[call]["phase"] = "backward"
    program.row(
        "collective", "ncclKernel_AllReduce", program.free, duration, device=0, stream=13, parent=call,
        correlation=1000 + program.now, collective="all_reduce", bytes=nbytes, dtype="float32",
        phase="backward",
    )  # fmt: skip
    program.now += 6


def distributed(*reduced_behind, duration=100_000, hooks=True, **metadata):
    """Training of two layers with DDP: behind these layers' gradients a bucket is reduced, on stream 13.

    Two of them are buckets of 4,000 B, a single one holds 8,000 B.
    """
    program = Program()
    for number in (0, 1):
        layer(program, number, backward=False)
    for number in (1, 0):
        with program.range("AddmmBackward0", "operator", phase="backward", sequence=number):
            program.op("aten::mm", "backward", (f"grad {number}", 60))
        name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        with program.range(name, "operator", phase="backward"):
            with program.range(
                "torch::autograd::AccumulateGrad", "operator", phase="backward",
                shapes=json.dumps(GRADIENT), dtype="float32",
            ):  # fmt: skip
                program.now += 2
            if number in reduced_behind and hooks:
                reduce_bucket(program, 8000 // len(reduced_behind), duration)
        if number in reduced_behind and not hooks:
            reduce_bucket(program, 8000 // len(reduced_behind), duration)
    with program.range("Optimizer.step#SGD.step", phase="optimizer"):
        program.op("aten::add_", "optimizer", ("update", 30))
    return program.graph(world_size=2, **{**A100, **metadata})
