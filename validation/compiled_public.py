"""Whose kernels are they? What public recordings of compiled and replayed code tell of operators, layers, phases.

    python validation/compiled_public.py --traces ../shared/traces                                 the tables on stdout
    python validation/compiled_public.py --traces ../shared/traces --write docs/evaluation

Captures beside their replays, a compiled step on an MI300X, and Inductor's own files.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tables import keep

import daydream
from daydream.collect.captures_beside import attach_capture, read_handles
from daydream.collect.importers.kineto.blocks import launched_kernels

PAIRS = {
    "vLLM decode, MI300X": ("vllm_mi300x_replay_decode", "vllm_mi300x_capture_32_FULL"),
    "SGLang decode, MI300X": ("sglang_mi300x_replay_decode", "sglang_mi300x_capture_bs32"),
}
COMPILED = {"compiled step, MI300X": "kineto/mi300x_torch_compile_triton.json.gz"}
MAPPINGS = ("jit_cuda_no_handles", "aot_cuda", "extended", "jit_training_debug_handles", "aot_debug_handles")
NUMBER = re.compile(r":\d+$")  # a debug handle
MAPPING = "inductor_provenance_tracking_node_mappings.json"


def main() -> None:
    """Print the tables, or write them as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of public traces")
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    keep(options.write, "public recordings", tables(options.traces))


def tables(traces: Path) -> Iterator[str]:
    """Yield the lines of both tables."""
    yield "| recording | kernels | time with an operator | with a layer | with a phase |"
    yield "|---|---:|---:|---:|---:|"
    for title, (replay, capture) in PAIRS.items():
        trace = daydream.load(traces / f"formats/kineto_graphs/{replay}.json.gz")
        yield row(f"{title}, replay alone", trace)
        file = traces / f"formats/kineto_graphs/{capture}.json.gz"
        attach_capture(trace, daydream.load(file), launched_kernels(file))
        yield row(f"{title}, with its capture", trace)
    for title, name in COMPILED.items():
        yield row(title, daydream.load(traces / name))
    yield ""
    yield "| Inductor's mapping file | format's version | debug handles | kernels | with operators |"
    yield "|---|---|---|---:|---:|"
    for folder in MAPPINGS:
        yield mapping(traces / "formats/inductor" / folder / MAPPING, folder)


def row(title: str, trace: Any) -> str:
    """Return a row: how much of the time of all kernels has an operator, a layer, a phase."""
    kernels = trace.is_kind("kernel")
    ns = trace["duration_ns"][kernels]
    shares = [ns[trace[name][kernels] >= 0].sum() / ns.sum() for name in ("op", "layer", "phase")]
    return f"| {title} | {int(kernels.sum()):,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"


def mapping(path: Path, name: str) -> str:
    """Return a row: of how many kernels of a mapping file the operators are known."""
    document = json.loads(path.read_text(encoding="utf-8"))
    version = document.get("version", "none")
    handles = read_handles(path)
    known = np.array([bool(handles[one]) for one in handles], bool)
    numbered = all(NUMBER.search(one) for one in document["cppCodeToPost"])
    kernels = len(document["cppCodeToPost"])
    return f"| `{name}` | {version} | {'yes' if numbered else 'no'} | {kernels} | {int(known.sum())} |"


if __name__ == "__main__":
    main()
