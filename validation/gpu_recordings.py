"""Import recordings of real changes on one GPU: traces of unchanged steps, and what each change gave.

    python validation/gpu_recordings.py FOLDER... -o validation/h200

Each folder holds a `measured.json`, {model: {variant: {"synced_median_us", ...}}}, and `MODEL/base.json.gz`,
the trace of the unchanged steps, with `MODEL/base_memory.json.gz` where allocations were recorded. A ratio is
that of the medians of steps that each end with a synchronization, without a profiler. `again` is the unchanged
step in another run of the same process: the control. Where it differs by more than 5 %, the recording is kept as unsteady,
and judges nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import daydream

MACHINE = "one NVIDIA H200, torch {torch}, CUDA {cuda}, float32 without TF32"
HOW = (
    "One process trains a variant after the other; a trace of three steps is recorded after the unchanged one. "
    "`again` is that one once more, the control."
)
# What a variant of the recording script is called here.
CHANGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tf32": ("TF32", "tf32", {}),
    "amp_bf16": ("autocast to bfloat16", "amp", {}),
    "amp_fp16": ("autocast to float16, scaled loss", "amp+grad-scaler", {}),
    "foreach": ("optimizer foreach=False to True", "foreach-optimizer", {}),
    "fused": ("optimizer foreach=False to fused=True", "fused-optimizer", {}),
    "amp_bf16_fused": ("autocast to bfloat16 and fused=True", "amp+fused-optimizer", {}),
    "batch2": ("batch x 2", "batch-size", {"factor": 2.0}),
    "accumulate2": ("accumulate 2 batches", "gradient-accumulation", {"batches": 2}),
    "channels_last": ("channels last", "channels-last", {}),
    "cuda_graph": ("CUDA graph of the step", "cuda-graphs", {}),
    "sdpa": ("scaled_dot_product_attention", "flash-attention", {}),
    "remat": ("checkpoint every block", "checkpointing", {"layers": "h.*"}),
    "compile": ("torch.compile", "compile", {}),
}
LARGEST_CONTROL = 0.05  # an unchanged step that differs more from itself says nothing of changes


def main() -> None:
    """Write the parquet traces and `measured.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": "", "how": HOW, "recordings": {}, "left_out": {}, "unsteady": {}}
    for folder in options.folders:
        measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        document["machine"] = MACHINE.format(**measured.pop("environment"))
        for model, variants in measured.items():
            name = f"{model}.parquet"
            daydream.load(folder / model / "base.json.gz").save(options.output / name, force=True)
            recording = _recording(name, variants)
            steady = abs(recording["control"] - 1) <= LARGEST_CONTROL
            document["recordings" if steady else "unsteady"][model] = [recording]
            document["left_out"][model] = int(not steady)
    text = json.dumps(document, indent=1) + "\n"
    (options.output / "measured.json").write_text(text, encoding="utf-8")


def _recording(trace: str, variants: dict[str, Any]) -> dict[str, Any]:
    base_us = variants["base"]["synced_median_us"]
    ratios = {name: round(one["synced_median_us"] / base_us, 4) for name, one in variants.items()}
    changes = {
        title: {"optimization": name, "options": values, "measured": ratios[variant]}
        for variant, (title, name, values) in CHANGES.items() if variant in ratios
    }  # fmt: skip
    control = ratios["again"]
    return {"trace": trace, "step_ms": round(base_us / 1e3, 3), "control": control, "changes": changes}


if __name__ == "__main__":
    main()
