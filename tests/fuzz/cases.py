"""A case: files with names, and a command line to run beside them. All of it follows from a seed."""

from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import json
import random
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fuzz.commands import NUMBERS, WORDS, command, optimizations
from fuzz.damage import (
    bytes_changed,
    cells_changed,
    columns_changed,
    database_changed,
    packed,
    tree_changed,
    written,
)  # fmt: skip
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


TESTS = Path(__file__).resolve().parents[1]
SHARED = TESTS.parents[1] / "shared" / "traces"


@dataclass(frozen=True)
class Case:
    """Files by name, and the words after `daydream`."""

    kind: str
    files: dict[str, bytes]
    args: list[str]


# -- sound recordings, of which the cases are made ------------------------------------------------------


@cache
def recordings():
    """Return Kineto's JSON of a training loop and of programs of the machine model."""
    from machine.programs import PROGRAMS

    found = [_text(kineto_of(training(3)))]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("synchronizing", "multi_stream", "multi_thread", "graphs"):
            path = PROGRAMS[name]().run(steps=6).write(Path(folder) / f"{name}.json", 2, 4)
            found.append(path.read_bytes())
    return found


ADDED = """
    world_size threads versions unprofiled_step_ns parameters optimizers collected profiler_cost held_before
"""


@cache
def traces():
    """Return them imported; the first has what `daydream collect` adds, the last has two ranks."""
    from daydream.collect.importers import import_trace
    from daydream.trace.trace import Trace

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(recordings()):
            path = Path(folder) / f"{number}.json"
            path.write_bytes(text)
            found.append(import_trace([path]))
        found.append(import_trace([Path(folder) / "2.json"] * 2, ranks=[0, 1]))
    collected = Trace.load(TESTS.parent / "examples" / "train_gpt_h200.parquet").metadata
    found[0].metadata |= {name: collected[name] for name in ADDED.split()}
    found[0].metadata["held_before"]["0"]["segments"][2:] = found[0].metadata["parameters"][4:] = []
    return found


@cache
def sound():
    """Return sound traces as parquet files."""
    return [written(file_of(trace)) for trace in traces()]


@cache
def nsys_export():
    """Return a database of Nsight Systems with rows of every kind that is read."""
    from collect.nsys_database import write_export

    rows = """
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
    times = r"(?<= )(\d+) (\d+)(?=$| correlationId| address)"
    text = "".join(
        re.sub(
            times,
            lambda found, at=at: " ".join(str(int(each) + at) for each in found.groups()),
            rows,
            flags=re.MULTILINE,
        )
        for at in range(0, 30_000, 5_000)
    )
    about = {"cuDevice": 0, "name": "A", "totalMemory": 2**35, "smCount": 8, "clockRate": 9}
    more = {"TARGET_INFO_GPU": [about], "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18}]}
    with tempfile.TemporaryDirectory() as folder:
        return write_export(Path(folder) / "t.sqlite", text, **more).read_bytes()


@cache
def rocpd_database():
    """Return a database of rocprofv3."""
    from collect.rocprof_files import write_rocpd

    with tempfile.TemporaryDirectory() as folder:
        return write_rocpd(Path(folder) / "t.db").read_bytes()


# -- recordings -----------------------------------------------------------------------------------------


def small(chance):
    """Return some events of a recording, with other names, shapes and times here and there."""
    document = json.loads(chance.choice(recordings()))
    marks = [event for event in document["traceEvents"] if "ProfilerStep" in str(event.get("name"))]
    others = [event for event in document["traceEvents"] if event not in marks]
    events = chance.sample(others, min(len(others), chance.choice((0, 1, 5, 10, 30, 100, 300, 1000))))
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


def _text(document):
    return json.dumps(document).encode("utf-8", "surrogatepass")


def kineto(chance):
    """Kineto's JSON, most of it with values that hardly fit."""
    document = small(chance) if chance.random() < 0.7 else json.loads(chance.choice(recordings()))
    if chance.random() < 0.6:
        document = tree_changed(document, chance)
    files = packed("t.json", _text(document), chance)
    return Case("kineto", files, command(next(iter(files)), chance))


SMALL = """
    kineto/a100_event_sync_multi_stream kineto/mi250_toy_training kineto/mi300x_torch_compile_triton
    kineto/vllm_decode_graph_replay kineto/gpu_user_annotation kineto/v100_dlrm_4_of_8_ranks/rank0
    odd/triton_example odd/backward_thread odd/stream_wait_resolved odd/pytorch_execution_trace_not_kineto
""".split()


def public(chance):
    """Real traces with changed bytes or values, rows in another order, twice, or at other times."""
    path = SHARED / f"{chance.choice(SMALL)}.json.gz"
    if not path.exists():
        return kineto(chance)
    text = gzip.decompress(path.read_bytes())
    if chance.random() < 0.3:
        content = chance.choice((bytes_changed(text, chance), bytes_changed(gzip.compress(text, 1), chance)))
    else:
        document = tree_changed(json.loads(text), chance) if chance.random() < 0.5 else json.loads(text)
        events = document if isinstance(document, list) else document.setdefault("traceEvents", [])
        if isinstance(events, list) and events:
            events += [copy.deepcopy(chance.choice(events)) for _ in range(len(events) // 3)]
            chance.shuffle(events)
            for event in chance.sample(events, len(events) // 20):
                if isinstance(event, dict) and isinstance(event.get("ts"), int | float):
                    event["ts"] += chance.choice((-1e15, -1e4, -1, 0.5, 1, 1e4, 1e15, 9e15))
        content = _text(document)
    return Case("public", {"t.json": content}, ["import", "t.json", "-o", "out.parquet"])


def executorch(chance):
    """An ETDump with changed bytes, cut off or whole."""
    content = (TESTS / "collect" / "executorch" / "xnnpack.etdp").read_bytes()
    return Case("executorch", {"t.etdp": bytes_changed(content, chance)}, command("t.etdp", chance))


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
    files = {f"r/rank{rank}.json": _text(document) for rank, document in enumerate(pair)}
    sides = ("r/rank0.json", "r/rank1.json") if chance.random() < 0.3 else ("r", None)
    return Case("ranks", files, command(sides[0], chance, other=sides[1]))


def vendors(chance):
    """Exports of Nsight Systems, files of rocprofv3 and of JAX with something wrong, or nothing."""
    from collect.rocprof_files import AGENTS, CALLS, COPIES, KERNELS_NEW, KERNELS_OLD, process
    from collect.xspace import training

    kind = chance.choice(("nsys", "nsys", "rocprof", "rocpd", "xplane", "rocprof-csv"))
    if kind == "rocprof-csv":
        tables = chance.sample((KERNELS_OLD, KERNELS_NEW, CALLS, COPIES, AGENTS), chance.choice((1, 2, 3)))
        texts = [cells_changed(table, chance).encode() for table in tables]
        files = {f"run/{number}.csv": text for number, text in enumerate(texts)}
        return Case(kind, files, command("run", chance))
    if kind == "xplane":
        vendor = chance.choice(("AMD", "Nvidia"))
        text = training(chance.choice((1, 4)), vendor=vendor, calls_apart=chance.random() < 0.5)
        text = bytes_changed(text, chance) if chance.random() < 0.6 else text
    elif kind == "rocprof":
        given = {"rocprofiler-sdk-tool": [copy.deepcopy(process(chance.choice((0, 1, 3))))]}
        text = _text(tree_changed(given, chance))
    else:
        text = database_changed(nsys_export() if kind == "nsys" else rocpd_database(), chance)
    endings = {"nsys": "t.sqlite", "rocprof": "t.json", "rocpd": "t.db", "xplane": "t.xplane.pb"}
    files = packed(endings[kind], text, chance)
    return Case(kind, files, command(next(iter(files)), chance))


# -- parquet --------------------------------------------------------------------------------------------


def parquet(chance):
    """Rows, types, metadata and memory events that only someone with bad intent would write."""
    import pyarrow as pa

    trace = chance.choice(traces()[:1] * 3 + traces())
    table = file_of(trace)
    kind = chance.choice(("rows", "rows", "lies", "metadata", "memory", "memory of schema 1", "bytes"))
    if kind == "rows":
        table = columns_changed(table, chance)
    elif kind == "lies":
        table = lies(table, chance)
    elif kind == "metadata":
        text = json.dumps(tree_changed(copy.deepcopy(trace.metadata), chance))
        odd = ("", "null", "[]", "[" * 100_000, '{"schema_version": 1e400}', text[: len(text) // 2])
        text = chance.choice(odd) if chance.random() < 0.05 else text
        table = table.replace_schema_metadata({b"daydream": text.encode("utf-8", "replace")})
    elif kind == "memory":
        rows = allocations(chance).rename_columns({"time_ns": "start_ns", "bytes": "memory_bytes"})
        rows = rows.append_column("kind", pa.array(["memory"] * len(rows)).dictionary_encode())
        if chance.random() < 0.5:
            rows = columns_changed(rows, chance)
        with contextlib.suppress(pa.ArrowException):  # a column that became one of another type
            table = pa.concat_tables([table, rows], promote_options="permissive").unify_dictionaries()
        if chance.random() < 0.5:
            table = columns_changed(table, chance)
    elif kind == "memory of schema 1":
        inner = written(columns_changed(allocations(chance), chance))
        inner = base64.b64encode(bytes_changed(inner, chance) if chance.random() < 0.15 else inner)
        inner = bytes_changed(inner, chance) if chance.random() < 0.15 else inner
        document = json.dumps({**trace.metadata, "schema_version": 1})
        table = table.replace_schema_metadata({b"daydream": document, b"daydream.memory": inner})
    content = bytes_changed(written(table), chance) if kind == "bytes" else written(table)
    return Case(f"parquet {kind}", {"t.parquet": content}, command("t.parquet", chance))


def file_of(trace):
    """Return what the file of a trace holds."""
    from pyarrow.parquet import read_table

    with tempfile.TemporaryDirectory() as folder:
        trace.save(f"{folder}/t.parquet")
        return read_table(f"{folder}/t.parquet")


def lies(table, chance):
    """Say what is right in each row and wrong in all together: parents in circles, sums that overflow."""
    import pyarrow as pa

    name = chance.choice(("parent", "duration_ns", "bytes", "row", "step"))
    values = table.column(name).to_pylist() if name in table.column_names else [None] * len(table)
    kind = table.schema.field(name).type if name in table.column_names else pa.int64()
    for _ in range(chance.choice((1, 5))):
        one, other = chance.randrange(len(values)), chance.randrange(len(values))
        if name == "parent":
            values[one], values[other] = other, one  # its own where both are one
        else:
            values[one] = values[other]
    if name in ("duration_ns", "bytes"):
        values = [2 ** chance.choice((47, 48, 50))] * len(values)
    column = pa.array(values, kind)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def allocations(chance):
    """Return a table of memory events."""
    import pyarrow as pa

    from daydream.trace.memory_events import COLUMNS

    rows = chance.choice((1, 2, 20))
    columns = {name: [0] * rows for name in COLUMNS}
    columns |= {"time_ns": list(range(rows)), "address": [512 * chance.randrange(4) for _ in range(rows)]}
    columns["bytes"] = [512 * chance.choice((-1, 1, 1, 8)) for _ in range(rows)]
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


# -- counters -------------------------------------------------------------------------------------------


KERNELS = ("axpy", "dot", "axpy", "dot")
A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
LAUNCHES = "\n".join(
    f"call cudaLaunchKernel {20 * at} {20 * at + 5} correlation={at}\n"
    f"kernel {name} {20 * at + 6} {20 * at + 15} correlation={at} grid=[16,1,1] block=[64,1,1]"
    for at, name in enumerate(KERNELS)
)
TRACE = json.dumps(kineto_of(LAUNCHES, **A100)).encode()
METRICS = (
    ("dram__bytes.sum", "Mbyte", "1,362.20"), ("lts__t_bytes.sum", "byte", "5000"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "2147483648"),
)  # fmt: skip
LONG = '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n' + "\n".join(
    f'"{at}","7","{name}","(16, 1, 1)","{metric}","{unit}","{value}"'
    for at, name in enumerate(KERNELS)
    for metric, unit, value in METRICS
)
WIDE = '"ID","Kernel Name","launch__grid_size","dram__bytes.sum"\n"","","","byte"\n"0","dot","16","1,024"\n'
SUMMARY = '"Kernel Name","Metric Name","Metric Unit","Invocations","Minimum","Maximum","Average"\n"dot","dram__bytes.sum","byte","2","1","3","2"\n'
ROCPROF = "Correlation_Id,Dispatch_Id,Agent_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value\n1,1,1,1024,dot,64,FETCH_SIZE,10\n2,2,1,1024,axpy,64,WRITE_SIZE,20\n"
OLD = 'Index,KernelName,gpu-id,grd,wgr,FetchSize,WriteSize,SQ_INSTS_LDS\n1,"dot",0,1024,64,8,4,12\n'
TEXTS = (
    "kernel 1 - dot - #thread-blocks 16,  kernel instructions 30, total instructions 30\n  FADD = 10\n  FFMA = 20\n",
    (
        "Total instructions executed: 120\nTotal number of LDS instructions: 9 (single-address: 4, double-address: 5)\n"
        "Total number of bank conflicts detected: 1.2e+06\nInstruction Opcode Results: \n  V_ADD_F32 = 3\n"
    ),
    "Alloc(0) 0:\t140 800000 (781.25 KB)\n\nKernel 0 (refs=9, objs=3, obj_size=4096, 4 KB):\tdot\n\nInvCount=2\tdot\n",
    "12|axpy\n30|dot\n",
)


def counters(chance):
    """Files of counters of every format that is read, with other cells, or two of them mixed."""
    tables = (LONG, WIDE, SUMMARY, ROCPROF, OLD)
    if chance.random() < 0.6:
        text = cells_changed(chance.choice(tables), chance)
    else:
        text = cells_changed(chance.choice((*TEXTS, TRACE.decode())), chance, separator=" ")
    if chance.random() < 0.2:
        text += chance.choice((*tables, *TEXTS))
    files = packed("counted.txt", text.encode("utf-8", "surrogatepass"), chance)
    words = command("t.json", chance)
    while words[0] not in ("whatif", "explain", "rank", "import"):
        words = command("t.json", chance)
    window = chance.choice(("", "", "", "@0-3", "@5-1", "@x", "@0-99999999999999999999"))
    return Case("counters", {"t.json": TRACE, **files}, [*words, "--counters", next(iter(files)) + window])


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
COMMANDS = """
    info replay explain rank whatif scaling compare sweep import x collect confirm calibrate
""".split()


def values(chance):
    """Known options with odd values, on a sound trace."""
    return Case("options", {"t.parquet": chance.choice(sound())}, command("t.parquet", chance, wild=True))


def words(chance):
    """Any words in any order."""
    first = chance.choice(COMMANDS)
    args = [first]
    if first in ("whatif", "sweep") and chance.random() < 0.9:
        args.append(chance.choice(optimizations()).name)
    if first not in ("collect", "confirm", "calibrate") and chance.random() < 0.7:
        args += ["t.parquet"] if first in ("info", "import", "compare") else ["--trace", "t.parquet"]
    args += [chance.choice(OPTIONS if chance.random() < 0.5 else VALUES) for _ in range(chance.randrange(5))]
    return Case("options", {"t.parquet": chance.choice(sound())}, args)


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


def own_file(chance):
    """An optimization from a file, with a mistake in it."""
    lines = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        edit = chance.choice(SELECTS) + chance.choice(EDITS).format(chance.choice(ODD))
        call = chance.choice(CALLS).format(chance.choice((*ODD, *SELECTS)))
        lines.append(chance.choice((chance.choice(BODIES), edit, call)))
    at_import = chance.choice(BODIES) if chance.random() < 0.1 else ""
    if "return" in at_import or "yield" in at_import:
        at_import = ""
    body = "\n".join(f"    {line}" for line in lines)
    text = f"{at_import}\n{chance.choice(HEADS).format(chance.choice(KNOBS))}\n{body}\n"
    ask = chance.choice((
        "whatif ./mine.py --trace t.parquet", "whatif ./mine.py --trace t.parquet --json", "whatif ./mine.py+amp --trace t.parquet",
        "explain --trace t.parquet --whatif ./mine.py", "sweep ./mine.py --trace t.parquet", "compare t.parquet t.parquet --whatif ./mine.py",
    ))  # fmt: skip
    files = {"t.parquet": chance.choice(sound()), "mine.py": text.encode("utf-8", "replace")}
    return Case("own file", files, ask.split())


def measured_times(chance):
    """A table of measured times with something wrong."""
    text = bytes_changed(b"name,duration_ns\nk,5\nampere_sgemm_32x32_tn,7\n", chance)
    ask = chance.choice(("amp", "gpu --name h100", "scale --factor 0.5 --on gpu")).split()
    files = {"t.parquet": chance.choice(sound()), "t.csv": text}
    return Case("options", files, ["whatif", *ask, "--trace", "t.parquet", "--table", "t.csv"])


MAKERS = {
    kineto: 40, public: 10, executorch: 3, encoded: 5, ranks: 6, vendors: 36, parquet: 32, counters: 16, values: 10, words: 3, own_file: 6, measured_times: 2,
}  # fmt: skip


def case_of(seed, number):
    """Return a case: the same one for the same numbers."""
    chance = random.Random(f"{seed}/{number}")
    (maker,) = chance.choices(list(MAKERS), list(MAKERS.values()))
    return maker(chance)
