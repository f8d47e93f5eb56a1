"""Kineto JSON: small recordings made up from its vocabulary, and real ones with something changed."""

from __future__ import annotations

import copy
import gzip
import json
import random
from functools import cache
from typing import Any

from fuzz.commands import command
from fuzz.hostile import STRANGE, Case

OPERATORS = (
    "aten::mm", "aten::addmm", "aten::linear", "aten::view", "aten::t", "aten::relu", "aten::gelu", "aten::copy_", "aten::to",
    "aten::item", "aten::add_", "aten::mul", "aten::_foreach_add_", "aten::addcdiv_", "aten::native_layer_norm",
    "aten::native_batch_norm", "aten::convolution", "aten::conv2d", "aten::softmax", "aten::_softmax", "aten::bmm",
    "aten::scaled_dot_product_attention", "aten::cross_entropy_loss", "aten::nll_loss_nd", "aten::log_softmax",
    "aten::embedding", "aten::dropout", "aten::sum", "aten::zero_", "aten::empty", "c10d::allreduce_", "gloo:all_reduce",
    "autograd::engine::evaluate_function: MmBackward0", "MmBackward0",
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "torch::autograd::AccumulateGrad", "record_param_comms", "nccl:all_reduce",
    "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad", "enumerate(DataLoader)#_Single.__next__", "",
    "Torch-Compiled Region: 0/0", "CompiledFunctionBackward", "DistributedDataParallel.forward", "FSDP::pre_backward",
)  # fmt: skip
CALLS = (
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize",
    "cudaEventSynchronize", "cudaEventRecord", "cudaStreamWaitEvent", "cudaGraphLaunch", "hipLaunchKernel", "cuLaunchKernel",
)  # fmt: skip
KERNELS = (
    "ampere_sgemm_32x32_tn", "void at::native::vectorized_elementwise_kernel<4, float>", "ncclDevKernel_AllReduce_Sum_f32",
    "flash_fwd_kernel<bf16>", "triton_poi_fused_0", "cutlass_80_wmma_tensorop", "void multi_tensor_apply_kernel<float>",
    "ncclDevKernel_SendRecv", "cudnn::bn_fw_tr", "softmax_warp_forward", "Memcpy HtoD (Pinned -> Device)", "k",
)  # fmt: skip
SHAPES = (
    [[64, 32], [32, 8]],
    [[4]],
    [[], [1]],
    [[2, 3, 4]],
    [[[2], [3]], [4]],
    [[0, 5]],
    [[2**31, 2**17]],
    [[8, 3, 16, 16], [4, 3, 3, 3]],
)
TYPES = (["float", "float"], ["float"], ["c10::BFloat16"], ["long int"], [""], ["TensorList"])


def small(chance: random.Random) -> dict[str, Any]:
    """Return a document of a few events from the vocabulary, most of them sensible."""
    events = []
    steps, length = chance.choice((0, 1, 2, 2, 3, 4)), chance.choice((10, 100, 1000))
    for step in range(steps):
        name = f"ProfilerStep#{step}" if chance.random() < 0.9 else "step"
        events.append(
            event("user_annotation", name, step * length, length - chance.choice((0, 1)), chance, tid=1)
        )
    whole = max(steps, 1) * length
    for _ in range(chance.choice((0, 1, 2, 3, 5, 10, 30, 100))):
        events += work(chance, chance.randrange(whole), chance.choice((0, 1, 2, 5, length // 3)))
    if chance.random() < 0.2:
        events += [event("python_function", chance.choice(("nn.Module: Linear_0", "train.py(3): f", "/a/t.py(2): g", "<built-in a>")),
                         chance.randrange(whole), chance.randrange(whole), chance, tid=1) for _ in range(3)]  # fmt: skip
    if chance.random() < 0.5:
        events += memory(chance, whole)
    document: dict[str, Any] = {"traceEvents": events}
    if chance.random() < 0.7:
        document["deviceProperties"] = [{"id": 0, "name": chance.choice(("NVIDIA A100-SXM4-40GB", "Tesla T4", "odd")), "numSms": 108,
                                         "totalGlobalMem": 2**35}]  # fmt: skip
    if chance.random() < 0.3:
        document["distributedInfo"] = {"rank": chance.choice((0, 1)), "world_size": chance.choice((1, 2, 8)), "backend": "nccl",
                                       "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}  # fmt: skip
    return document


def memory(chance: random.Random, whole: int) -> list[dict[str, Any]]:
    """Return allocations and frees, most of them as an allocator does them."""
    rows, held, kind = [], {}, chance.choice((1, 1, 6, 20))
    for _ in range(chance.choice((1, 3, 10, 40))):
        address = 512 * chance.randrange(8)
        nbytes = -held.pop(address, -512) if chance.random() < 0.4 else 512 * chance.choice((1, 2, 4096))
        held |= {address: nbytes} if nbytes > 0 else {}
        args = {"Device Type": kind, "Device Id": 0, "Addr": 2**40 + address, "Bytes": nbytes}
        if chance.random() < 0.2:
            args |= {"Device Type": 0, "Device Id": -1}
        if chance.random() < 0.7:
            args |= {"Total Allocated": sum(held.values()), "Total Reserved": 2**21}
        if chance.random() < 0.1:
            args[chance.choice(list(args))] = strange(chance)
        rows.append({"ph": "i", "name": "[memory]", "pid": 9, "tid": chance.choice((1, 1, 2)),
                     "ts": chance.randrange(whole), "args": args})  # fmt: skip
    return rows


def event(
    category: str, name: Any, ts: float, dur: float, chance: random.Random, *, tid: Any = None, **args: Any
) -> dict[str, Any]:
    """Return an event on a thread."""
    thread = chance.choice((1, 1, 1, 2, 3)) if tid is None else tid
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 9,
        "tid": thread,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def work(chance: random.Random, at: int, long: int) -> list[dict[str, Any]]:
    """Return an operator, and perhaps a call in it and what it launches."""
    number, args = chance.randrange(1000), {}
    if chance.random() < 0.6:
        args = {"Input Dims": chance.choice(SHAPES), "Input type": chance.choice(TYPES)}
    if chance.random() < 0.5:
        args |= {"Sequence number": chance.randrange(10), "Fwd thread id": chance.randrange(2)}
    name = chance.choice(OPERATORS)
    if "allreduce" in name or "nccl" in name or "record_param" in name or "gloo" in name:
        args |= {"Collective name": "allreduce", "In msg nelems": chance.choice((0, 100, 2**40)), "dtype": "Float",
                 "Process Group Name": "0"}  # fmt: skip
    found = [event("cpu_op", name, at, long, chance, **{"External id": number, **args})]
    if chance.random() < 0.5:
        thread = found[0]["tid"]
        call = chance.choice(CALLS)
        found.append(
            event(
                "cuda_runtime",
                call,
                at + 0.25,
                long / 2,
                chance,
                tid=thread,
                correlation=number,
                **{"External id": number},
            )
        )
        if chance.random() < 0.8:
            stream = chance.choice((7, 7, 7, 20))
            kind = "gpu_memcpy" if "Memcpy" in call else "gpu_memset" if "Memset" in call else "kernel"
            more = {
                "grid": [chance.choice((1, 80, 2**20)), 1, 1],
                "block": [128, 1, 1],
                "bytes": chance.choice((0, 4096, 2**40)),
            }
            if chance.random() < 0.1:
                kind, more = (
                    "cuda_sync",
                    {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": chance.randrange(1000)},
                )
            found.append({"ph": "X", "cat": kind, "name": chance.choice(KERNELS), "pid": 0, "tid": stream,
                          "ts": at + chance.choice((0, 0.5, 3, 50)), "dur": chance.choice((0, 1, 2.5, 100)),
                          "args": {"device": 0, "stream": stream, "correlation": number, "External id": number, **more}})  # fmt: skip
    return found


@cache
def bases() -> list[bytes]:
    """Return real and generated recordings, as text."""
    import tempfile
    from pathlib import Path

    from kineto_text import document, training
    from machine.programs import PROGRAMS

    found = [json.dumps(document(training(3))).encode()]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("synchronizing", "multi_stream", "multi_thread", "graphs"):
            path = PROGRAMS[name]().run(steps=6).write(Path(folder) / f"{name}.json", 2, 4)
            found.append(path.read_bytes())
    return found


def damage(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Change a few values of a document to strange ones, or leave some out."""
    events = document["traceEvents"]
    for _ in range(chance.choice((1, 2, 5, 30))):
        where: Any = chance.choice(events) if events and chance.random() < 0.9 else document
        if where is document and chance.random() < 0.3:
            document[
                chance.choice(("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "traceEvents"))
            ] = strange(chance)
            events = document["traceEvents"] if isinstance(document.get("traceEvents"), list) else []
            continue
        while isinstance(where, dict) and where:
            key = chance.choice(list(where))
            if isinstance(where[key], dict) and chance.random() < 0.8:
                where = where[key]
            elif chance.random() < 0.2:
                del where[key]
                break
            else:
                where[key] = strange(chance)
                break
    return document


def strange(chance: random.Random) -> Any:
    """Return a value that hardly fits."""
    return copy.deepcopy(chance.choice(STRANGE))


def packed(document: Any, chance: random.Random) -> tuple[str, bytes]:
    """Return a file name and the document as text, now and then gzipped, damaged or in another encoding."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1:
        text = bytes_changed(text, chance)
    if chance.random() < 0.15:
        text = gzip.compress(text, 1)
        return "t.json.gz", bytes_changed(text, chance) if chance.random() < 0.3 else text
    return "t.json", text


def bytes_changed(text: bytes, chance: random.Random) -> bytes:
    """Flip, drop, cut or repeat some bytes."""
    data = bytearray(text)
    for _ in range(chance.choice((1, 3, 30))):
        if data:
            at = chance.randrange(len(data))
            if chance.random() < 0.7:
                data[at] = chance.choice((chance.randrange(256), *b'{}[]",:0-.eN\\\n'))
            elif chance.random() < 0.5:
                del data[at : at + chance.choice((1, 10, 1000))]
            else:
                data[at:at] = data[at : at + 100]
    return bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data)


def tiny(chance: random.Random) -> Case:
    """A made-up recording, whole."""
    name, text = "t.json", json.dumps(small(chance)).encode()
    return Case("small", {name: text}, command(name, chance))


def damaged(chance: random.Random) -> Case:
    """A recording with values that hardly fit."""
    document = small(chance) if chance.random() < 0.5 else json.loads(chance.choice(bases()))
    name, text = packed(damage(document, chance), chance)
    return Case("kineto", {name: text}, command(name, chance))


def encoded(chance: random.Random) -> Case:
    """Text in other encodings, gzip within gzip, other formats, nothing at all."""
    text = json.dumps(small(chance), ensure_ascii=False).encode("utf-8", "surrogatepass")
    how = chance.randrange(9)
    text = (
        lambda: text.decode("utf-8", "replace").encode("utf-16"), lambda: b"\xef\xbb\xbf" + text, lambda: gzip.compress(gzip.compress(text)),
        lambda: gzip.compress(text) + gzip.compress(b" "), lambda: gzip.compress(text)[:-4], lambda: text.replace(b"a", b"\xff\x00"),
        lambda: b"[" * chance.choice((10, 100_000)), lambda: chance.choice((b"", b"\n", b"{}", b"[]", b"null", b"PAR1", b"\x1f\x8b", b"SQLite format 3\x00")),
        lambda: bytes_changed(text, chance),
    )[how]()  # fmt: skip
    name = chance.choice(("t.json", "t.json.gz", "t.parquet", "t.sqlite", "t", "t\x1b[31m.json"))
    return Case("encoding", {name: text}, command(name, chance))


def ranks(chance: random.Random) -> Case:
    """Two files as two ranks, or two sides of a comparison."""
    files = {}
    for rank in range(2):
        document = small(chance)
        if chance.random() < 0.5:
            document = damage(document, chance)
        files[f"r/rank{rank}.json"] = json.dumps(document).encode("utf-8", "surrogatepass")
    if chance.random() < 0.3:
        return Case("ranks", files, command("r/rank0.json", chance, other="r/rank1.json"))
    return Case("ranks", files, command("r", chance))
