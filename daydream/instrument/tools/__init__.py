"""Instrumentation tools that ship: small classes, each made of the same actions that anybody's tool has."""

from __future__ import annotations

from daydream.instrument.tools.changing import (
    FakeQuantization,
    Pruning,
    Rematerialization,
    Replacing,
    chosen,
)
from daydream.instrument.tools.looking import (
    ActivationStatistics,
    EffectivePath,
    Mapping,
    Sparsity,
    Tracing,
)

__all__ = [
    "ActivationStatistics",
    "EffectivePath",
    "FakeQuantization",
    "Mapping",
    "Pruning",
    "Rematerialization",
    "Replacing",
    "Sparsity",
    "Tracing",
    "chosen",
]
