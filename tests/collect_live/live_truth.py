"""What every dispatched operator of a step truly belongs to, found without the profiler.

Modules' own `forward` methods are wrapped; autograd's number at each entry and exit tells which
module made a backward node; a node that accumulates a gradient names its parameter; an
optimizer's operators are known by the parameter's own state among their arguments.
"""

from __future__ import annotations

import tempfile
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from live_models import MODELS
from live_recording import record

torch = pytest.importorskip("torch", reason="recording needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

OUTSIDE = "outside all modules"
DETACH = "detach"  # of saved tensors: dispatched, but the profiler does not show the mode there
IN_MODE = "PythonDispatchMode"  # the profiler's row around each operator that a dispatch mode sees


@dataclass(frozen=True)
class Seen:
    """One dispatched operator: what it is, whose it is, and the part of the step it ran in."""

    name: str
    layer: str
    phase: str


class Truth(TorchDispatchMode):
    """Notes every operator that is dispatched."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.seen = []
        self.optimizer = optimizer
        self.phase = "forward"
        self.stack = []
        self.numbers = []  # autograd's number whenever a module was entered or left
        self.last_number = 0
        self.inside = []  # the innermost module from then on
        self.owner_of_tensor = {}
        self.owner = OUTSIDE
        self.owner_of_parameter = {}
        for path, module in model.named_modules():
            layer = path or type(model).__name__
            for parameter in module.parameters(recurse=False):
                self.owner_of_parameter.setdefault(id(parameter), layer)
            module.forward = self.wrapped(module.forward, layer)

    def wrapped(self, forward, layer):
        def run(*args, **options):
            self.stack.append(layer)
            self.mark()
            try:
                return forward(*args, **options)
            finally:
                self.stack.pop()
                self.mark()
                if not self.stack and torch._C._current_autograd_node() is None:
                    self.phase = "loss"  # what follows the model's call

        return run

    def mark(self):
        self.last_number = torch.autograd._get_sequence_nr()
        self.numbers.append(self.last_number)
        self.inside.append(self.stack[-1] if self.stack else OUTSIDE)

    def mark_node(self, layer):
        """Note whose the nodes are that were made since the last look: gradients of gradients."""
        if self.inside and layer != self.inside[-1]:
            self.numbers.append(self.last_number)
            self.inside.append(layer)
        self.last_number = torch.autograd._get_sequence_nr()

    def begin_step(self, *_):
        """Begin to see the optimizer's operators; a hook, as torch's own range must not be seen."""
        self.phase = "optimizer"
        self.owner_of_tensor = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                owner = self.owner_of_parameter[id(parameter)]
                mine = [parameter, parameter.grad, *self.optimizer.state.get(parameter, {}).values()]
                self.owner_of_tensor.update({id(one): owner for one in mine if torch.is_tensor(one)})
        self.__enter__()

    def end_step(self, *_):
        self.__exit__(None, None, None)
        self.phase = "forward"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.seen.append(Seen(func._schema.name.removeprefix("aten::"), *self.whose(args)))
        return func(*args, **(kwargs or {}))

    def whose(self, args):
        """Return the layer and the phase of the operator that is about to run."""
        if self.phase == "optimizer":
            owners = {self.owner_of_tensor[id(one)] for one in args if id(one) in self.owner_of_tensor}
            if owners:
                (self.owner,) = owners
            return self.owner, "optimizer"
        node = torch._C._current_autograd_node()
        layer = self.stack[-1] if self.stack else OUTSIDE if node is None else self.layer_of(node)
        self.mark_node(layer)
        if node is not None:
            return layer, "backward"
        return layer, "forward" if self.stack else self.phase

    def layer_of(self, node):
        if hasattr(node, "variable"):
            return self.owner_of_parameter.get(id(node.variable), OUTSIDE)
        place = bisect_right(self.numbers, node._sequence_nr()) - 1
        return self.inside[place] if place >= 0 else OUTSIDE


@cache
def recorded_with_truth(name, make):
    """Return a model's trace, and the row of each operator the truth knows, with that truth.

    `make` returns the model's optimizer.
    """
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    optimizer = make(model)
    truth = Truth(model, optimizer)

    def iteration():
        optimizer.zero_grad()
        with truth:
            loss().backward()
        optimizer.step()

    optimizer.register_step_pre_hook(truth.begin_step)
    optimizer.register_step_post_hook(truth.end_step)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = record(iteration, Path(folder))
    rows, seen = _in_order(trace, truth.seen)
    return trace, rows, seen


def _in_order(trace, seen):
    """Return the rows around the mode's own, and what was noted there: one for one, up to the end."""
    inner = np.flatnonzero((trace["name"] == trace.code("name", IN_MODE)) & (trace["parent"] >= 0))
    rows = trace["parent"][inner]
    named = [(name or "").removeprefix("aten::") for name in trace.values("name", rows)]
    keep = [index for index, name in enumerate(named) if name != DETACH and "::" not in name]
    noted = [one for one in seen if one.name != DETACH][-len(keep) :]
    assert [named[index] for index in keep] == [one.name for one in noted]
    return rows[keep], noted
