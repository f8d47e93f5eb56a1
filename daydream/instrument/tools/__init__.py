"""Instrumentation tools that ship: small classes, each made of the same actions that anybody's tool has."""

from __future__ import annotations

from daydream.instrument.tools.choice import chosen
from daydream.instrument.tools.effective_path import EffectivePath
from daydream.instrument.tools.mapping import Mapping
from daydream.instrument.tools.pruning import Pruning
from daydream.instrument.tools.quantization import FakeQuantization
from daydream.instrument.tools.rematerialization import Rematerialization
from daydream.instrument.tools.replacing import Replacing
from daydream.instrument.tools.sparsity import Sparsity
from daydream.instrument.tools.statistics import ActivationStatistics
from daydream.instrument.tools.tracing import Tracing

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
