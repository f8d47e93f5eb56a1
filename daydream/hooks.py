"""What lower floors ask of higher ones. The front page gives the functions: no floor imports upward.

| hook | who asks | what answers |
|---|---|---|
| `html` | nouns in a notebook (`_repr_html_`) | `daydream.report.notebook` |
| `figure` | nouns (`plot`) | `daydream.report.figures` |
| `fixed_order` | `Graph.to_networkx`, for lanes with a schedule | `daydream.simulate.policy` |
| `real_change` | the training process of `daydream confirm` | `daydream.transforms.real_change` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_GIVEN: dict[str, Callable[..., Any]] = {}


def give(name: str, function: Callable[..., Any]) -> None:
    """Let a function answer a hook."""
    _GIVEN[name] = function


def ask(name: str, *args: Any, **options: Any) -> Any:
    """Return what the function of a hook answers."""
    return _GIVEN[name](*args, **options)
