"""One comparison in an experiment tracker: MLflow (extra `mlflow`), Weights & Biases (extra `wandb`).

from daydream.integrations.tracking import log_to_mlflow, log_to_wandb

with mlflow.start_run():
    log_to_mlflow(daydream.compare("before.parquet", "after.parquet"))
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from daydream.errors import DaydreamError
from daydream.predict.compare import Difference
from daydream.predict.prediction import Prediction
from daydream.transforms.real_change import code_of

if TYPE_CHECKING:
    from daydream.predict.compare import Side

Result: TypeAlias = Difference | Prediction
LONGEST_TAG = 4_000  # characters of a tag; MLflow takes 5,000
MISSING = "the package `{0}` is not installed.\nInstall it with: pip install 'daydream[{1}]'"


def figures(found: Result) -> dict[str, float]:
    """Return the figures of a comparison or a prediction by name; what is not known is left out.

    Times are in ms a step: `before_ms`, `predicted_ms`, `after_ms`, each with `_low_ms` and `_high_ms` where
    it has a range. `speedup` is before over after, `prediction_error` the relative error of a prediction that
    came true or not, `replay_error` the largest of a step.
    """
    if isinstance(found, Prediction):
        speedup = None if found.predicted_ns is None else found.speedup
        known = {
            "before_ms": _ms(found.replayed_ns),
            "predicted_ms": _ms(found.predicted_ns),
            "predicted_low_ms": _ms(found.predicted_low_ns),
            "predicted_high_ms": _ms(found.predicted_high_ns),
            "speedup": speedup,
            "replay_error": None if found.replay_error is None else abs(found.replay_error),
        }
    else:
        one, two, start = found.before, found.after, found.started_from_ns
        before = one.simulated_ns if start is None else start
        known = {
            **({"before_ms": _ms(start)} if one.prediction else _side("before", one)),
            **(_side("predicted", one) if one.prediction else {}),
            **_side("after", two),
            "speedup": before / two.simulated_ns if two.simulated_ns else None,
            "prediction_error": found.error,
            "replay_error": max(one.max_replay_error, two.max_replay_error),
        }
    return {name: float(value) for name, value in known.items() if value is not None}


def log_to_mlflow(found: Result, *, prefix: str = "daydream.", step: int | None = None) -> None:
    """Log a comparison or a prediction to the active run of MLflow: metrics, tags, the whole as artifacts.

    Args:
        found: what `daydream.compare` or `daydream.whatif` returned.
        prefix: of the names of metrics and tags.
        step: of the metrics, as MLflow takes it.

    Raises:
        DaydreamError: MLflow is not installed.

    """
    try:
        import mlflow
    except ImportError:
        raise DaydreamError(MISSING.format("mlflow", "mlflow")) from None
    mlflow.log_metrics({prefix + name: value for name, value in figures(found).items()}, step=step)
    mlflow.set_tags({prefix + name: text[:LONGEST_TAG] for name, text in _texts(found).items()})
    mlflow.log_dict(_document(found), "daydream/comparison.json")
    mlflow.log_text(_page(found), "daydream/comparison.html")


def log_to_wandb(found: Result, *, run: Any = None, prefix: str = "daydream/") -> None:
    """Log a comparison or a prediction to a run of Weights & Biases: figures, config, the page.

    Args:
        found: what `daydream.compare` or `daydream.whatif` returned.
        run: the run; `wandb.run` by default, which `wandb.init` began.
        prefix: of the names of figures and of the entries of the config.

    Raises:
        DaydreamError: W&B is not installed, or no run has begun.

    """
    try:
        import wandb
    except ImportError:
        raise DaydreamError(MISSING.format("wandb", "wandb")) from None
    run = wandb.run if run is None else run
    if run is None:
        raise DaydreamError("no run of Weights & Biases has begun: call wandb.init() first, or give run=")
    page = wandb.Html(_page(found), inject=False)
    run.log({**{prefix + name: value for name, value in figures(found).items()}, f"{prefix}comparison": page})
    run.config.update({prefix + name: text for name, text in _texts(found).items()}, allow_val_change=True)


def _side(name: str, side: Side) -> dict[str, float | None]:
    if side.reason:
        return {}
    return {
        f"{name}_ms": _ms(side.step_ns),
        f"{name}_low_ms": _ms(side.low_ns),
        f"{name}_high_ms": _ms(side.high_ns),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _texts(found: Result) -> dict[str, str]:
    """Return what the figures are of: the change, the code that makes it, and the two sides."""
    if isinstance(found, Prediction):
        return {"change": found.optimization, "code": found.code or "none"}
    change = found.before.prediction
    sides = {"before": found.before.name, "after": found.after.name}
    return sides if not change else {**sides, "change": change, "code": code_of(change) or "none"}


def _document(found: Result) -> dict[str, Any]:
    """Return what `--json` prints: numbers of Python's own types, null for what is none."""
    text = json.dumps({"schema": 1, **found.to_json()}, default=lambda value: value.item())
    document: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return document


def _page(found: Result) -> str:
    from daydream.report.notebook import html

    return f"<!doctype html><meta charset=utf-8>{html(found)}"
