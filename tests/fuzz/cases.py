"""A case: files with names, and a command line to run beside them. All of it follows from a seed.

Sound files of every format are damaged by what they hold. Of Kineto's rows some are taken, named otherwise, doubled
and moved.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from fuzz.commands import NUMBERS, WORDS, command
from fuzz.damage import damaged, packed, text_of, tree_changed, written
from graph.small_traces import kineto as kineto_of
from graph.small_traces import training

NAMES = """
    aten::mm aten::addmm aten::linear aten::view aten::relu aten::copy_ aten::item aten::_foreach_add_
    aten::native_layer_norm aten::convolution aten::softmax aten::bmm aten::scaled_dot_product_attention
    aten::nll_loss_nd aten::embedding aten::dropout aten::zero_ aten::empty c10d::allreduce_ gloo:all_reduce
    MmBackward0 torch::autograd::AccumulateGrad record_param_comms nccl:all_reduce Optimizer.step#Adam.step
    Optimizer.zero_grad#Adam.zero_grad enumerate(DataLoader)#_Single.__next__ CompiledFunctionBackward
    DistributedDataParallel.forward FSDP::pre_backward cudaLaunchKernel cudaMemcpyAsync cudaMemsetAsync
    cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaEventRecord cudaStreamWaitEvent
    cudaGraphLaunch hipLaunchKernel ampere_sgemm_32x32_tn ncclDevKernel_AllReduce_Sum_f32
    flash_fwd_kernel<bf16> triton_poi_fused_0 cutlass_80_wmma_tensorop multi_tensor_apply_kernel<float>
    ncclDevKernel_SendRecv \x1b[31mred \x1b[2J
""".split()
SHAPES = json.loads(
    "[[[64,32],[32,8]], [[4]], [[],[1]], [[[2],[3]],[4]], [[0,5]], [[2147483648,131072]], [[8,3,16,16]]]"
)
PUBLIC = """
    kineto/a100_event_sync_multi_stream kineto/mi250_toy_training kineto/mi300x_torch_compile_triton
    kineto/vllm_decode_graph_replay kineto/gpu_user_annotation kineto/v100_dlrm_4_of_8_ranks/rank0
    odd/triton_example odd/backward_thread odd/stream_wait_resolved
""".split()
TESTS = Path(__file__).resolve().parents[1]
SHARED = TESTS.parents[1] / "shared" / "traces"


@dataclass(frozen=True)
class Case:
    """Files by name, and the words after `daydream`."""

    kind: str
    files: dict[str, bytes]
    args: list[str]


# -- sound files, of which the cases are made -----------------------------------------------------------


@cache
def recordings():
    """Return Kineto's JSON of a training loop and of programs of the machine model."""
    from machine.programs import PROGRAMS

    found = [text_of(kineto_of(training(3)))]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("synchronizing", "multi_stream", "multi_thread", "graphs"):
            path = PROGRAMS[name]().run(steps=6).write(Path(folder) / f"{name}.json", 2, 4)
            found.append(path.read_bytes())
    return found


@cache
def public():
    """Return small public recordings, where they are at hand."""
    paths = [SHARED / f"{name}.json.gz" for name in PUBLIC]
    return [gzip.decompress(path.read_bytes()) for path in paths if path.exists()]


ADDED = """
    world_size threads versions unprofiled_step_ns parameters optimizers collected profiler_cost held_before
"""


@cache
def sound():
    """Return parquet files: the first has what `daydream collect` adds, the last but one has two ranks.

    The last is of schema 1, which kept memory as a table beside the rows.
    """
    import pyarrow as pa

    from daydream.collect.importers import import_trace
    from daydream.trace.memory_events import MemoryEvents
    from daydream.trace.trace import Trace

    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{number}.json" for number in range(len(recordings()))]
        for path, text in zip(paths, recordings(), strict=True):
            path.write_bytes(text)
        traces = [*(import_trace([path]) for path in paths), import_trace([paths[2]] * 2, ranks=[0, 1])]
        collected = Trace.load(TESTS.parent / "examples" / "train_gpt_h200.parquet").metadata
        traces[0].metadata |= {name: collected[name] for name in ADDED.split()}
        traces[0].metadata["held_before"]["0"]["segments"][2:] = traces[0].metadata["parameters"][4:] = []
        events = {"time_ns": np.arange(20), "address": 512 * (np.arange(20) % 4), "device": np.zeros(20, int)}
        events["bytes"] = np.where(np.arange(20) % 8 < 4, 512, -512)
        traces[0].memory = MemoryEvents(events)
        found = []
        for number, trace in enumerate(traces):
            trace.save(path := Path(name) / f"{number}.parquet")
            found.append(path.read_bytes())
        table = pa.Table.from_batches([traces[1].to_arrow()])
    about = json.dumps({**traces[1].metadata, "schema_version": 1})
    memory = base64.b64encode(written(pa.table(events)))
    old = table.replace_schema_metadata({b"daydream": about, b"daydream.memory": memory})
    return [*found, written(old)]


EXPORT = """
    RUNTIME cudaLaunchKernel_v7000 0 50 correlationId=0
    KERNEL 20 220 correlationId=0
    RUNTIME cudaMemcpyAsync_v3020 1000 1050 correlationId=10
    MEMCPY 1020 1100 correlationId=10
    RUNTIME cudaStreamSynchronize_v3020 2000 2050 correlationId=20
    SYNCHRONIZATION 2020 2030 correlationId=20
    RUNTIME cudaEventRecord_v3020 3000 3050 correlationId=30
    CUDA_EVENT 0 0 correlationId=30 eventId=1
    MEMSET 3200 3210 correlationId=40
    NVTX_EVENTS aten::mm, seq 3, sizes [[2, 3]] 0 400
    NVTX_EVENTS step 1 0 4990
    CUDA_GPU_MEMORY_USAGE_EVENTS 10 0 address=512
    CUDA_GPU_MEMORY_USAGE_EVENTS 3010 0 address=512 memoryOperationType=1
"""


@cache
def exports():
    """Return files of other profilers, by kind; those of one set are read together."""
    from collect.nsys_database import tables, write_export
    from collect.rocprof_files import AGENTS, CALLS, COPIES, KERNELS_NEW, KERNELS_OLD, process, write_rocpd
    from collect.xspace import training as profile

    later = [(table, row, at) for table, rows in tables(EXPORT).items() for at in range(6) for row in rows]
    nsys = {table: [] for table, _, _ in later}
    for table, row, at in later:
        nsys[table].append(row | {key: row[key] + 5_000 * at for key in ("start", "end")})
    about = {"cuDevice": 0, "name": "A", "totalMemory": 2**35, "smCount": 8, "clockRate": 9}
    more = {"TARGET_INFO_GPU": [about], "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18}]}
    csv = KERNELS_OLD, KERNELS_NEW, CALLS, COPIES, AGENTS
    makers = "AMD", "Nvidia"
    with tempfile.TemporaryDirectory() as name:
        sqlite = write_export(Path(name) / "t.sqlite", nsys, **more).read_bytes()
        rocpd = write_rocpd(Path(name) / "t.db").read_bytes()
    return {
        "nsys": [{"t.sqlite": sqlite}],
        "rocpd": [{"t.db": rocpd}],
        "rocprof": [{"t.json": text_of({"rocprofiler-sdk-tool": [process(steps)]})} for steps in (0, 1, 3)],
        "rocprof-csv": [{f"run/{number}.csv": text.encode() for number, text in enumerate(csv)}],
        "xplane": [
            {"t.xplane.pb": profile(4, vendor=maker, calls_apart=apart)}
            for maker in makers for apart in (False, True)
        ],
        "executorch": [{"t.etdp": (TESTS / "collect" / "executorch" / "xnnpack.etdp").read_bytes()}],
    }  # fmt: skip


# -- recordings -----------------------------------------------------------------------------------------


def small(chance):
    """Return some events of a recording, with other names, shapes and times, twice, in another order."""
    document = json.loads(chance.choice([*recordings(), *public()]))
    document = document if isinstance(document, dict) else {"traceEvents": document}
    marks = [event for event in document["traceEvents"] if "ProfilerStep" in str(event.get("name"))]
    others = [event for event in document["traceEvents"] if event not in marks]
    events = chance.sample(others, min(len(others), chance.choice((0, 1, 5, 10, 30, 100, 300, 1000))))
    if chance.random() < 0.2:
        events += copy.deepcopy(events[::3])
        for event in events[::20]:
            event["ts"] = chance.choice((-1e15, -1e4, -1, 0.5, 1, 1e4, 1e15, 9e15))
    for event in events:
        if chance.random() < 0.3:
            event["name"] = chance.choice(NAMES)
        if chance.random() < 0.1:
            event["dur"] = chance.choice((0, 1, 2.5, 100))
        if chance.random() < 0.2 and isinstance(event.get("args"), dict):
            event["args"] |= {"Input Dims": chance.choice(SHAPES), "Input type": ["float", "long int"]}
    marks = marks if chance.random() < 0.8 else []
    document["traceEvents"] = [*marks, *events, *(memory(chance) if chance.random() < 0.3 else [])]
    if chance.random() < 0.3:
        groups = [{"pg_name": "0", "ranks": [0, 1]}]
        document["distributedInfo"] = {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": groups}
    return document


def memory(chance):
    """Return allocations and frees, most of them as an allocator does them."""
    rows, held = [], {}
    for _ in range(chance.choice((1, 3, 10, 40))):
        address = 512 * chance.randrange(8)
        nbytes = -held.pop(address, -512) if chance.random() < 0.4 else 512 * chance.choice((1, 2, 4096))
        held |= {address: nbytes} if nbytes > 0 else {}
        args = {"Device Type": 1, "Device Id": 0, "Addr": 2**40 + address, "Bytes": nbytes}
        if chance.random() < 0.7:
            args |= {"Total Allocated": sum(held.values()), "Total Reserved": 2**21}
        rows.append(
            {"ph": "i", "name": "[memory]", "pid": 9, "tid": 1, "ts": chance.randrange(2_000), "args": args}
        )
    return rows


def kineto(chance):
    """Kineto's JSON, most of it with values that hardly fit."""
    document = small(chance) if chance.random() < 0.7 else json.loads(chance.choice(recordings()))
    if chance.random() < 0.6:
        document = tree_changed(document, chance)
    files = packed("t.json", text_of(document), chance)
    return Case("kineto", files, command(next(iter(files)), chance))


def encoded(chance):
    """Text in other encodings, gzip within gzip, other formats, nothing at all."""
    text = json.dumps(small(chance), ensure_ascii=False).encode("utf-8", "surrogatepass")
    text = chance.choice((
        text.decode("utf-8", "replace").encode("utf-16"), b"\xef\xbb\xbf" + text, gzip.compress(gzip.compress(text)),
        gzip.compress(text) + gzip.compress(b" "), gzip.compress(text)[:-4], text.replace(b"a", b"\xff\x00"), b"[" * 10,
        b"[" * 100_000, b"", b"\n", b"{}", b"[]", b"null", b"PAR1", b"\x1f\x8b", b"SQLite format 3\x00",
    ))  # fmt: skip
    name = chance.choice(("t.json", "t.json.gz", "t.parquet", "t.sqlite", "t", "t\x1b[31m.json"))
    return Case("encoding", {name: text}, command(name, chance))


def ranks(chance):
    """Two files as two ranks, or two sides of a comparison."""
    pair = [tree_changed(small(chance), chance) if chance.random() < 0.5 else small(chance) for _ in "01"]
    files = {f"r/rank{rank}.json": text_of(document) for rank, document in enumerate(pair)}
    sides = ("r/rank0.json", "r/rank1.json") if chance.random() < 0.3 else ("r", None)
    return Case("ranks", files, command(sides[0], chance, other=sides[1]))


def exported(chance):
    """Files of another profiler with something wrong, or nothing; of several some."""
    kind = chance.choice(["nsys", *exports()])
    files, made = chance.choice(exports()[kind]), {}
    for name in chance.sample(sorted(files), chance.randint(1, len(files))):
        made |= damaged(name, files[name], chance)
    return Case(kind, made, command("run" if "csv" in kind else next(iter(made)), chance))


def parquet(chance):
    """Rows, types, metadata and memory events that only someone with bad intent would write."""
    files = damaged("t.parquet", chance.choice([*sound()[:1] * 3, *sound()]), chance)
    return Case("parquet", files, command(next(iter(files)), chance))


# -- counters and times beside a trace --------------------------------------------------------------------


KERNELS = ("axpy", "dot", "axpy", "dot")
A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
LAUNCHES = "\n".join(
    f"call cudaLaunchKernel {20 * at} {20 * at + 5} correlation={at}\n"
    f"kernel {name} {20 * at + 6} {20 * at + 15} correlation={at} grid=[16,1,1] block=[64,1,1]"
    for at, name in enumerate(KERNELS)
)
TRACE = text_of(kineto_of(LAUNCHES, **A100))
METRICS = (
    '"dram__bytes.sum","Mbyte","1,362.20"', '"lts__t_bytes.sum","byte","5000"',
    '"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","inst","2147483648"',
)  # fmt: skip
LONG = '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n' + "\n".join(
    f'"{at}","7","{name}","(16, 1, 1)",{metric}' for at, name in enumerate(KERNELS) for metric in METRICS
)
COUNTED = (
    LONG,
    '"ID","Kernel Name","launch__grid_size","dram__bytes.sum"\n"","","","byte"\n"0","dot","16","1,024"\n',
    '"Kernel Name","Metric Name","Metric Unit","Invocations","Minimum","Maximum","Average"\n"dot","dram__bytes.sum","byte","2","1","3","2"\n',
    "Correlation_Id,Dispatch_Id,Agent_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value\n1,1,1,1024,dot,64,FETCH_SIZE,10\n2,2,1,1024,axpy,64,WRITE_SIZE,20\n",
    'Index,KernelName,gpu-id,grd,wgr,FetchSize,WriteSize,SQ_INSTS_LDS\n1,"dot",0,1024,64,8,4,12\n',
    "kernel 1 - dot - #thread-blocks 16,  kernel instructions 30, total instructions 30\n  FADD = 10\n  FFMA = 20\n",
    "Total instructions executed: 120\nTotal number of LDS instructions: 9 (single-address: 4, double-address: 5)\nTotal number of bank conflicts detected: 1.2e+06\nInstruction Opcode Results: \n  V_ADD_F32 = 3\n",
    "Alloc(0) 0:\t140 800000 (781.25 KB)\n\nKernel 0 (refs=9, objs=3, obj_size=4096, 4 KB):\tdot\n\nInvCount=2\tdot\n",
    "12|axpy\n30|dot\n",
    TRACE.decode(),
)  # fmt: skip
TIMES = "name,duration_ns\naxpy,5\ndot,7\n"
ASKED = (
    "explain",
    "rank --pairs 0",
    "whatif amp",
    "whatif gpu --to h100",
    "whatif scale --factor 0.5 --on gpu",
)


def beside(chance):
    """Counters of every format that is read, or times, with other cells, or two of them mixed."""
    timed = chance.random() < 0.1
    text = TIMES if timed else chance.choice(COUNTED) + chance.choice(("", "", "", "", *COUNTED))
    files = damaged("counted.txt", text.encode("utf-8", "surrogatepass"), chance)
    window = "" if timed else chance.choice(("", "", "", "@0-3", "@5-1", "@x", "@0-99999999999999999999"))
    words = [*chance.choice(ASKED[timed * 2 :]).split(), "--trace", "t.json"]
    return Case(
        "beside", {"t.json": TRACE, **files},
        [*words, "--table" if timed else "--counters", next(iter(files)) + window],
    )  # fmt: skip


# -- options, and files of a user's own ------------------------------------------------------------------


OPTIONS = """
    --trace --json --html -o --top --pairs --table --steps --step-marker --contention --engine --workers --set
    --sort --jitter --straggler --seed --whatif --force --help --no-curves --ranks --max-unpacked --factor --on
    --plot --debug --
""".split()
VALUES = (
    *NUMBERS, *WORDS, "a" * 5000, "\udc80",
    *["t.parquet", "missing", "/dev/null", "/dev/zero", ".", "out.parquet", "0.5,0.8", "factor=1,2", "factor=1,...,9", "scale", "amp+", "+", "local", "2:1"],
)  # fmt: skip


def options(chance):
    """Known options with odd values, and any words behind them, on a sound trace."""
    args = command("t.parquet", chance, wild=True)
    more = [chance.choice(OPTIONS if chance.random() < 0.5 else VALUES) for _ in range(5)]
    return Case(
        "options", {"t.parquet": chance.choice(sound())}, args + more[chance.choice((1, 3, 5, 5, 5)) :]
    )


BODIES = (
    "raise SystemExit(3)", "import sys; sys.exit()", "raise KeyboardInterrupt", "raise BaseException('x')", "print('x' * 100)",
    "print('\\udc80')", "import sys; sys.stdout.close()", "import sys; sys.stdout = None", "import sys; sys.stderr.close()",
    "import threading, time; threading.Thread(target=lambda: 1 / 0).start(); time.sleep(0.05)",
    "import threading, time; threading.Thread(target=lambda: time.sleep(999)).start()", "1 / 0", "raise RuntimeError('\\x1b[31m')",
    "graph.nothing()", "raise StopIteration", "yield 1", "return 5", "import warnings; warnings.warn('hm')", "f()", "assert False",
    "raise ValueError", "import os; os.chdir('/')", "raise Exception('a\\nb')", "class E(Exception):\n        def __str__(self): return 1 / 0\n    raise E",
)  # fmt: skip
SELECTS = (
    "graph.select()", "graph.select(kind='cpu')", "graph.select(on='gpu')", "graph.select(kind='kernel').head(1)",
    "graph.select(name='a')", "graph.select(phase='backward')", "graph.select(kind='cpu').last()",
    "graph.select(kind='x')", "graph.select(name='(')", "graph.select(layer=3)", "graph.select(on=None)",
)  # fmt: skip
ODD = """
    0 -1 1e300 float('nan') float('inf') 2**62 2**70 'a' None [] 1e-300 0.5 -0.5 2
""".split()
EDITS = (
    ".scale({})", ".set(duration_ns={})", ".set(gap_ns={})", ".remove()", ".head({}).remove()", ".where(name={})", ".set(name={})",
    ".total({})", ".runs({}, of='bytes')", ".group_by({})", ".first()", ".set(lane={})",
)  # fmt: skip
CALLS = (
    "graph.insert('x', kind='cpu', lane='thread 1', duration_ns={})", "graph.insert('x', kind='collective', lane='link', duration_ns=5, after=[{}])",
    "graph.insert('x', kind={}, lane='l', duration_ns=5)", "graph.schedule('link', key={})", "graph.note({})", "graph.link([0], [0], latency_ns={})",
    "graph.insert({}, kind='cpu', lane='thread 1', duration_ns=7)",
)  # fmt: skip
HEADS = (
    *["def mine(graph{}):"] * 3, "def other(graph{}):", "mine = 5 #", "class mine:\n  def __init__(graph{}):", "def mine{}(:",
)  # fmt: skip
KNOBS = ("", "", ", *, a: float = 1.0", ", *, a=None", ", a=1", ", *, a: list = []", ", **more", ", *rest")
MINE = (
    "whatif ./mine.py --trace t.parquet", "whatif ./mine.py --trace t.parquet --json", "whatif ./mine.py+amp --trace t.parquet",
    "explain --trace t.parquet --whatif ./mine.py", "sweep ./mine.py --trace t.parquet", "compare t.parquet t.parquet --whatif ./mine.py",
)  # fmt: skip


def own_file(chance):
    """An optimization from a file, with a mistake in it."""
    lines = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        edit = chance.choice(SELECTS) + chance.choice(EDITS).format(chance.choice(ODD))
        call = chance.choice(CALLS).format(chance.choice((*ODD, *SELECTS)))
        lines.append(f"    {chance.choice((chance.choice(BODIES), edit, call))}")
    at_import = chance.choice(BODIES[:9]) if chance.random() < 0.1 else ""
    text = "\n".join([at_import, chance.choice(HEADS).format(chance.choice(KNOBS)), *lines, ""])
    files = {"t.parquet": chance.choice(sound()), "mine.py": text.encode("utf-8", "replace")}
    return Case("own file", files, chance.choice(MINE).split())


MAKERS = {
    kineto: 45, encoded: 5, ranks: 6, exported: 39, parquet: 32, beside: 18, options: 13, own_file: 6,
}  # fmt: skip


def case_of(seed, number):
    """Return a case: the same one for the same numbers."""
    chance = random.Random(f"{seed}/{number}")
    (maker,) = chance.choices(list(MAKERS), list(MAKERS.values()))
    return maker(chance)
