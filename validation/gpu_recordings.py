"""Import recordings of real changes on one GPU: traces of unchanged steps, and what each change gave.

    python validation/gpu_recordings.py FOLDER... --confirmed train_gpt=FOLDER -o validation/h200

Each folder holds a `measured.json`, {model: {variant: {"synced_median_us", ...}}}, and `MODEL/base.json.gz`,
the trace of the unchanged steps, with `MODEL/base_memory.json.gz` where allocations were recorded. A ratio is
that of the medians of steps that each end with a synchronization, without a profiler. `again` is the unchanged
step in another run of the same process: the control. Where it differs by more than 5 %, the recording is kept as unsteady,
and judges nothing.

A folder of `--confirmed` holds, of one script, what `daydream confirm NAME -o confirm_NAME.parquet --json SCRIPT`
wrote and printed (`confirm_NAME.json`): a recording by `collect` for each change, measured in turns with it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daydream

MACHINE = "one NVIDIA H200, torch {torch}, CUDA {cuda}, float32 without TF32"
HOW = (
    "One process trains a variant after the other; a trace of three steps is recorded after the unchanged one. "
    "`again` is that one once more, the control. `train_gpt` is `examples/train_gpt.py` (6 layers, width 768, 256 "
    "tokens) by `daydream confirm`, a process a change, in blocks that take turns. The errors "
    "that ranges are made of were not fitted to these recordings."
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
    parser.add_argument("--confirmed", action="append", default=[], metavar="MODEL=FOLDER")
    parser.add_argument("-o", "--output", required=True, type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": "",
        "how": HOW,
        "blind": True,
        "recordings": {},
        "left_out": {},
        "unsteady": {},
    }
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
    for each in options.confirmed:
        model, _, folder = each.partition("=")
        document["recordings"][model] = list(_confirmed(model, Path(folder), options.output))
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


def _confirmed(model: str, folder: Path, output: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("confirm_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        name = found["optimization"]
        trace = f"{model}-{name}.parquet"
        shutil.copy(path.with_suffix(".parquet"), output / trace)
        ratio = round(found["confirmed_ns"] / found["baseline_ns"], 4)
        change = {"optimization": name, "options": {}, "measured": ratio}
        title = next((title for title, known, _ in CHANGES.values() if known == name), name)
        step_ms = round(found["baseline_ns"] / 1e6, 3)
        yield {
            "trace": trace, "step_ms": step_ms, "control": round(found["control"], 4), "changes": {title: change},
        }  # fmt: skip


if __name__ == "__main__":
    main()
