"""What lower floors ask of higher ones. The front page gives the functions: no floor imports upward.

| hook | who asks | what answers |
|---|---|---|
| `html` | nouns in a notebook (`_repr_html_`) | `daydream.report.notebook` |
| `interactive` | a what-if (`interactive`) | `daydream.report.html.frame` |
| `figure` | nouns (`plot`) | `daydream.report.figures` |
| `fixed_order` | `Graph.to_networkx`, for lanes with a schedule | `daydream.simulate.policy` |
| `real_change` | the training process of `daydream confirm` | `daydream.transforms.real_change` |
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_GIVEN: dict[str, tuple[str, str]] = {}


def give(answers: Mapping[str, tuple[str, str]]) -> None:
    """Say which function answers each hook: its module, imported when it is asked, and its name."""
    _GIVEN.update(answers)


def ask(hook: str, *args: Any, **options: Any) -> Any:
    """Return what the function of a hook answers."""
    module, name = _GIVEN[hook]
    return getattr(import_module(module), name)(*args, **options)
