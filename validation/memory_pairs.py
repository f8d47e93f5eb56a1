"""Peak memory of real changes on a CPU, measured, and the traces that they are to be predicted from.

    python validation/memory_pairs.py -o validation/memory_peaks             what is measured; half an hour
    python validation/memory_pairs.py -o validation/memory_peaks --traces    the traces

The truth of a change is the peak of a process of its own in which it is made for real. torch's profiler records
every allocation and free from before the model is made; `memory_reader.py`, which is not daydream's, sums
them up and takes the most of the steps after those that warm up. Each change is recorded twice (A/A). A
third process counts the same below torch, without a profiler (`memory_count.c`; it takes a C compiler). For two
ranks that count is the truth: gloo's own threads let go of tensors, which the profiler does not see.
Nothing is predicted here: `memory_accuracy.py` does that from the traces alone.

Who judges: CNN, Encoder, GPT, LSTM and MLP are for development, since causes of their misses were mended; GRU, Mixer
and UNet judge. They were chosen and measured when those mends were done, and predicted then.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from memory_changes import CHANGES, DEVELOPED, MODELS, UNCHANGED
from memory_count import library

HERE = Path(__file__).parent
ASKED = "import json, sys, memory_recordings as m; print(json.dumps(getattr(m, sys.argv[1])(*sys.argv[2:])))"


def main() -> None:
    """Measure everything, or what is asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--traces", action="store_true", help="record the traces alone, measure nothing")
    parser.add_argument(
        "--only",
        action="append",
        choices=[UNCHANGED, *CHANGES],
        help="measure this alone, again; else what is missing",
    )
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True, parents=True)
    page = options.output / "peaks.json"
    document = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {"recordings": {}}
    with tempfile.TemporaryDirectory() as folder:
        counter = library(Path(folder))
        for name in options.models or MODELS:
            found = document["recordings"].setdefault(name, {"role": _role(name), "peaks": {}})
            if options.traces:
                found.update(_in_process("trace", name, str(options.output / f"{name}.parquet")))
                _write(page, document)
            every = (title for title in (UNCHANGED, *CHANGES) if title not in found["peaks"])
            for title in () if options.traces else options.only or every:
                found["peaks"][title] = one = _measured(name, title, counter)
                print(name, title, one, file=sys.stderr, flush=True)
                document["machine"] = f"{platform.machine()}, one thread, {_versions()}"
                _write(page, document)


def _write(page: Path, document: dict[str, Any]) -> None:
    page.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _role(name: str) -> str:
    return "development" if name in DEVELOPED else "judgement"


def _measured(name: str, title: str, counter: Path) -> dict[str, Any]:
    """Return the truth of a change, that of its second recording, and the count beside it."""
    change = CHANGES.get(title)
    made = {"optimization": change.optimization, "options": change.options} if change is not None else {}
    if change is not None and change.ranks > 1:
        first, second = (_in_process("counted", name, title, preload=counter) for _ in range(2))
        return {**made, **first, "again_bytes": second["peak_bytes"]}
    first, second = (_in_process("recorded", name, title) for _ in range(2))
    below = _in_process("counted", name, title, preload=counter)
    return {
        **made, **first, "again_bytes": second["peak_bytes"], "counted_bytes": below["peak_bytes"],
        "with_onednn_bytes": below["with_onednn_bytes"],
    }  # fmt: skip


def _in_process(*asked: str, preload: Path | None = None) -> dict[str, Any]:
    more = {} if preload is None else {"LD_PRELOAD": str(preload)}
    # spawned ranks find the modules by PYTHONPATH
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), **more}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *asked], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _versions() -> str:
    import torch

    return f"Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
