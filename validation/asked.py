"""Answer every question about one trace and write the numbers as JSON; `answers.py` runs it in each revision.

    python validation/asked.py TRACE OUT.json '{"more": [["amp+grad-scaler", {}]]}'

It uses only what every revision has: the functions of the package's front page, their `to_json`, and the command `info`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daydream
from daydream.transforms.registry import names

OPTIONS: dict[str, dict[str, Any]] = {  # of optimizations that need some
    "batch-size": {"factor": 2.0},
    "cpu": {"speedup": 2.0},
    "ddp": {"gradient_mb": 100.0, "cluster": "dgx-h100"},
    "freeze": {"layers": "*Conv2d*"},
    "fsdp": {"gradient_mb": 100.0, "cluster": "dgx-h100"},
    "gpu": {"to": "h100"},
    "metaflow": {"layers": "*Conv2d*", "factor": 0.5},
    "network": {"bandwidth_factor": 2.0},
    "pcie": {"bandwidth": 24.0, "recorded": 12.0},
    "pipeline": {"cluster": "dgx-h100"},
    "remove-layers": {"layers": "*BatchNorm2d*"},
    "replace": {"op": r"^aten::(gelu|relu)_?$", "factor": 0.5},
    "scale": {"on": "gpu", "factor": 0.5},
    "sequence-length": {"length": 512},
}
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("scale", {"on": "gpu", "factor": 0.0}), ("scale", {"on": "gpu", "factor": 2.0}),
    ("scale", {"on": "cpu", "factor": 0.0}), ("scale", {"on": "cpu", "factor": 0.5}),
    ("scale", {"on": "cpu", "factor": 4.0}), ("amp", {"model": "paper"}), ("dataloader", {"workers": 4}),
    ("autocast+fused-optimizer", {"dtype": "bfloat16"}), ("compile+amp", {}),
)  # fmt: skip
NAMED_BY = "optimization whatif cause sort label layer phase rank device workers index name".split()  # noqa: SIM905
WORKERS = 2, 8


def asked(name: str, options: dict[str, Any]) -> str:
    """Return a what-if as it is typed."""
    flags = [f"--{key.replace('_', '-')} {value}" for key, value in options.items()]
    return " ".join(["whatif", name, *flags])


def flat(value: Any, path: str = "") -> dict[str, float | None]:
    """Return all numbers (and nulls) of a JSON value by path; an item of a list goes by what it is called."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return {path: value}
    parts: dict[str, Any] = {}
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list):
        for place, item in enumerate(value):
            named = item if isinstance(item, dict) and path != "/scenarios" else {}  # one name, all options
            called = [str(named[key]) for key in NAMED_BY if isinstance(named.get(key), (str, int))]
            name = ":".join(called) or str(place)
            parts[name if name not in parts else f"{name}#{place}"] = item
    return {
        key: number for name, part in parts.items() for key, number in flat(part, f"{path}/{name}").items()
    }


def answer(ask: Callable[[], Any]) -> dict[str, Any]:
    """Return the numbers of an answer, or `{"refused": why}`; a crash is kept as one."""
    try:
        return flat(ask().to_json())
    except daydream.DaydreamError as error:
        return {"refused": " ".join(str(error).split())}
    except Exception as error:  # noqa: BLE001 - a crash is an answer that has to be looked at
        return {"refused": f"CRASH {type(error).__name__}: {error}"}


def info(trace: str) -> dict[str, Any]:
    """Return the numbers of `daydream info`."""
    command = [sys.executable, "-m", "daydream", "info", trace, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        crashed = "CRASH " if "Traceback" in done.stderr else ""
        return {"refused": crashed + done.stderr[-1000:]}
    return flat(json.loads(done.stdout))


def answers(
    trace: str, more: list[tuple[str, dict[str, Any]]], *, all_too: bool
) -> dict[str, dict[str, Any]]:
    """Return all answers about a trace by question; `more` what-ifs are asked too, or alone."""
    got: list[Any] = []

    def read() -> Any:
        got[:] = [loaded := daydream.load(trace), daydream.replay(loaded)]
        return got[1]

    found = {"replay": answer(read)}
    if not got:
        return found
    loaded, replay = got
    every = [*((name, OPTIONS.get(name, {})) for name in names()), *MORE] if all_too else []
    for name, options in [*every, *more]:
        found[asked(name, options)] = answer(lambda: daydream.whatif(replay, name, **options))  # noqa: B023
    if not all_too:
        return found
    found["info"] = info(trace)
    found["rank"] = answer(lambda: daydream.rank(replay))
    found["explain"] = answer(lambda: daydream.explain(replay))
    found["explain amp"] = answer(lambda: daydream.explain(replay, "amp"))
    found["scaling"] = answer(
        lambda: daydream.scaling(replay, WORKERS, cluster="dgx-h100", gradient_mb=100.0)
    )
    found["sweep scale"] = answer(lambda: daydream.sweep(replay, "scale", {"factor": [0.25, 0.75]}, on="gpu"))
    found["memory"] = answer(lambda: daydream.memory_of(loaded))
    return found


if __name__ == "__main__":
    began, out = time.process_time(), Path(sys.argv[2])
    home = Path(daydream.__file__).resolve().parent.parent
    if home != Path(os.environ["PYTHONPATH"]).resolve():
        sys.exit(f"these would be the answers of {home}")
    found = answers(sys.argv[1], **json.loads(sys.argv[3]))
    part = out.with_suffix(".part")
    part.write_text(json.dumps({"seconds": time.process_time() - began, "answers": found}), encoding="utf-8")
    part.replace(out)
