"""One comparison in an experiment tracker: MLflow (extra `mlflow`), Weights & Biases (extra `wandb`).

from daydream.integrations.tracking import log_to_mlflow, log_to_wandb

with mlflow.start_run():
    log_to_mlflow(daydream.compare("before.parquet", "after.parquet"))
"""

from __future__ import annotations

from typing import Any, TypeAlias

from daydream.errors import DaydreamError, MissingPackageError
from daydream.predict.compare import Difference
from daydream.predict.prediction import Prediction
from daydream.transforms.real_change import code_of

Result: TypeAlias = Difference | Prediction
PREDICTED = ("predicted", "predicted_low", "predicted_high")  # times of a prediction
LONGEST_TAG = 4_000  # characters of a tag; MLflow takes 5,000


def figures(found: Result) -> dict[str, float]:
    """Return the figures of a comparison or a prediction by name; what is not known is left out.

    Times are in ms a step: `before_ms`, `predicted_ms`, `after_ms`, each with `_low_ms` and `_high_ms` where
    it has a range. `speedup` is before over after, `prediction_error` the relative error of a prediction that
    came true or not, `replay_error` the largest of a step.
    """
    if isinstance(found, Prediction):
        times = {name: getattr(found, f"{name}_ns") for name in PREDICTED}
        times["before"] = found.replayed_ns
        error = found.replay_error
        ratios = {"speedup": found.speedup, "replay_error": None if error is None else abs(error)}
    else:
        one = found.before
        two = found.after
        start = found.started_from_ns
        times = {"before": start}  # of a prediction; of a recording it is the side's own
        for name, side in {"predicted" if one.prediction else "before": one, "after": two}.items():
            if not side.reason:
                times |= {name: side.step_ns}
                times |= {f"{name}_low": side.low_ns, f"{name}_high": side.high_ns}
        before = one.simulated_ns if start is None else start
        ratios = {
            "speedup": before / two.simulated_ns if two.simulated_ns else None,
            "prediction_error": found.error,
            "replay_error": max(one.max_replay_error, two.max_replay_error),
        }
    known = {f"{name}_ms": ns / 1e6 for name, ns in times.items() if ns is not None}
    return known | {name: float(value) for name, value in ratios.items() if value is not None}


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
        raise MissingPackageError("mlflow", "mlflow") from None
    mlflow.log_metrics({prefix + name: value for name, value in figures(found).items()}, step=step)
    mlflow.set_tags({prefix + name: text[:LONGEST_TAG] for name, text in _texts(found).items()})
    mlflow.log_dict({"schema": 1, **found.to_json()}, "daydream/comparison.json")
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
        raise MissingPackageError("wandb", "wandb") from None
    run = wandb.run if run is None else run
    if run is None:
        reason = "no run of Weights & Biases has begun: call wandb.init() first, or give run="
        raise DaydreamError(reason)
    page = {"comparison": wandb.Html(_page(found), inject=False)}
    run.log({prefix + name: value for name, value in {**figures(found), **page}.items()})
    texts = {prefix + name: text for name, text in _texts(found).items()}
    run.config.update(texts, allow_val_change=True)


def _texts(found: Result) -> dict[str, str]:
    """Return what the figures are of: the change, the code that makes it, and the two sides."""
    if isinstance(found, Prediction):
        return {"change": found.optimization, "code": found.code or "none"}
    change = found.before.prediction
    sides = {"before": found.before.name, "after": found.after.name}
    return sides if not change else {**sides, "change": change, "code": code_of(change) or "none"}


def _page(found: Result) -> str:
    from daydream.report.page import html

    return f"<!doctype html><meta charset=utf-8>{html(found)}"
