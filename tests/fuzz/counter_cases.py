"""Files of counters, of every format that is read: with other cells, changed bytes, cut off, or mixed."""

from __future__ import annotations

import gzip
import json
import random

from fuzz.commands import command
from fuzz.hostile import Case
from fuzz.kineto_cases import bytes_changed
from rocprof_text import process

TRACE = json.dumps({
    "traceEvents": [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 20 * n, "dur": 5,
         "args": {"correlation": n}}
        for n in range(1, 5)
    ] + [
        {"ph": "X", "cat": "kernel", "name": ("axpy", "dot")[n % 2], "pid": 0, "tid": 7, "ts": 20 * n + 6, "dur": 9,
         "args": {"correlation": n, "device": 0, "stream": 7, "grid": [16, 1, 1], "block": [64, 1, 1]}}
        for n in range(1, 5)
    ],
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
}).encode()  # fmt: skip
LONG = "\n".join([
    "==PROF== Connected to process 7",
    '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"',
    *(f'"{at}","7","{("axpy", "dot")[at % 2]}","(16, 1, 1)","{metric}","{unit}","{value}"'
      for at in range(1, 5)
      for metric, unit, value in (
          ("dram__bytes.sum", "Mbyte", "1,362.20"), ("lts__t_bytes.sum", "byte", "5000"),
          ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "1,048,576"),
          ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", "0"),
          ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "2147483648"),
      )),
])  # fmt: skip
WIDE = (
    '"ID","Kernel Name","launch__grid_size","dram__bytes.sum"\n"","","","byte"\n'
    '"0","dot","16","1,024"\n"1","axpy","16","n/a"\n'
)
SUMMARY = (
    '"Kernel Name","Metric Name","Metric Unit","Invocations","Minimum","Maximum","Average"\n'
    '"axpy","dram__bytes.sum","byte","2","1","3","2"\n"dot","dram__bytes.sum","byte","2","1","3","2"\n'
)
ROCPROF = "\n".join([
    "Correlation_Id,Dispatch_Id,Agent_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value",
    *(f"{at},{at},1,1024,{('axpy', 'dot')[at % 2]},64,{counter},{10 * at}"
      for at in range(1, 5) for counter in ("FETCH_SIZE", "WRITE_SIZE", "SQ_INSTS_VALU_ADD_F32")),
])  # fmt: skip
OLD = "\n".join([
    "Index,KernelName,gpu-id,grd,wgr,FetchSize,WriteSize,SQ_INSTS_LDS",
    *(f'{at},"{("axpy", "dot")[at % 2]}",0,1024,64,8,4,12' for at in range(1, 5)),
])  # fmt: skip
NVBIT = "".join(
    f"kernel {at} - {('axpy', 'dot')[at % 2]} - #thread-blocks 16,  kernel instructions 30, total instructions {30 * at}\n"
    "  FADD = 10\n  FFMA = 20\n" for at in range(1, 5)
)  # fmt: skip
LUTHIER = (
    "Total instructions executed: 120\nTotal number of LDS instructions: 9 (single-address: 4, double-address: 5)\n"
    "Total number of bank conflicts detected: 1.2e+06\nInstruction Opcode Results: \n  V_ADD_F32 = 3\n"
    "Total number of instructions counted: 3\n"
)
ACCELPROF = (
    "Alloc(0) 0:\t140 800000 (781.25 KB)\n\nKernel 0 (refs=9, objs=3, obj_size=4096, 4 KB):\taxpy\n"
    "Kernel 1 (refs=9, objs=3, obj_size=4096, 4 KB):\tdot\n\nInvCount=2\taxpy\nInvCount=2\tdot\n\n"
    "Number of allocations: 1\nNumber of kernels: 2\n"
)
FLOPS = "12|axpy\n30|dot\n"
CSVS, TEXTS = (LONG, WIDE, SUMMARY, ROCPROF, OLD), (NVBIT, LUTHIER, ACCELPROF, FLOPS)
CELLS = (
    "",
    "x",
    "-1",
    "1e9",
    "1,2",
    "1.048,576",
    '"',
    "99999999999999999999",
    "nan",
    "inf",
    "0",
    "\x00",
    "\x1b[31m",
    "(",
    "1,362.20",
)
LEAST = 2  # words of a line that is worth changing


def tables(chance: random.Random) -> Case:
    """A table of counters with other cells, or one mixed with another."""
    rows = [line.split(",") for line in chance.choice(CSVS).splitlines()]
    for _ in range(chance.choice((0, 1, 3))):
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice(CELLS)
    if chance.random() < 0.2:
        rows += [line.split(",") for line in chance.choice((*CSVS, *TEXTS)).splitlines()]
    return _case(chance, "\n".join(",".join(row) for row in rows))


def texts(chance: random.Random) -> Case:
    """Output of NVBit, Luthier or AccelProf with other words, or mixed with another."""
    lines = chance.choice(TEXTS).splitlines()
    for _ in range(chance.choice((0, 1, 3))):
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        if len(words) >= LEAST:
            words[chance.randrange(len(words))] = chance.choice(CELLS)
        lines[at] = " ".join(words)
    if chance.random() < 0.2:
        lines += chance.choice((*TEXTS, *CSVS)).splitlines()
    return _case(chance, "\n".join(lines) + "\n")


def objects(chance: random.Random) -> Case:
    """rocprofv3's JSON where counters are looked for, or Kineto's without ranges."""
    given = {"rocprofiler-sdk-tool": [process(1)]}
    return _case(chance, chance.choice((json.dumps(given), TRACE.decode())))


def _case(chance: random.Random, text: str) -> Case:
    content = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.3:
        content = bytes_changed(content, chance)
    if chance.random() < 0.2:
        content = content[: chance.randrange(len(content) + 1)]
    name = "counted.txt"
    if chance.random() < 0.15:
        name, content = "counted.txt.gz", gzip.compress(content, 1)
    words = command("t.json", chance)
    while words[0] not in ("whatif", "explain", "rank", "import"):
        words = command("t.json", chance)
    window = chance.choice(("", "", "", "@0-3", "@5-1", "@x", "@0-99999999999999999999"))
    return Case("counters", {"t.json": TRACE, name: content}, [*words, "--counters", name + window])
