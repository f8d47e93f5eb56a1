"""Device work that a change by layer may be about, and may not: calls that run many layers as one.

A replay of a CUDA graph and a compiled call launch the work of many layers. What the recording does not tell
apart in them has the layer of the call, or none. Of any layer inside the call it may be a part: an answer
about the work that is told apart would look like one about all of it.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.graph.query.blocks import TOGETHER, matching_blocks, repeated_blocks
from daydream.graph.query.device import device_work
from daydream.graph.query.matching import matching
from daydream.graph.query.whole_calls import WholeCalls, whole_calls, within
from daydream.graph.tables import phase_code
from daydream.model import trained_parameters
from daydream.predict.replayed_work import MUCH
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction

NOT_BY_LAYER = [phase_code("optimizer"), phase_code("data")]  # updates are told apart by their parameters
RECORD = {"CUDA graphs": "without CUDA graphs", "compiled calls": "without torch.compile"}


class UnplacedWork(NamedTuple):
    """Device work of a step in ns: all, and what may be of the layers that a change chose or of others.

    `share` is how far the work that was chosen changes, as a part of it, and `where` what ran the rest.
    """

    device_ns: float
    unplaced_ns: float
    share: float
    where: str

    @property
    def is_much(self) -> bool:
        """Whether that leaves no answer."""
        return self.unplaced_ns > MUCH * self.device_ns

    @property
    def unknown_ns(self) -> float:
        """How far the step would be off if that were of the chosen layers, too."""
        return self.share * self.unplaced_ns

    def __str__(self) -> str:
        """Say how much it is, and what would tell more."""
        times = f"{self.unplaced_ns / 1e6:,.2f} of {self.device_ns / 1e6:,.2f} ms of device work per step"
        return (
            f"{times} are known only as part of {self.where}: which of it is of these layers is not recorded "
            f"(record {RECORD[self.where]})"
        )


def unplaced_work(comparison: Prediction) -> UnplacedWork | None:
    """Return what a change by layer may be about, too; None for other changes, and if there is none."""
    before, after = comparison.replay.graph, comparison.graph
    calls = whole_calls(before) if after.layers_asked else None
    if calls is None:
        return None
    columns, size = after.columns, before.size
    took = np.where(before.alive, before.columns["duration_ns"], 0)
    takes = np.where(after.alive, columns["duration_ns"], 0)
    edited = np.ones(after.size, bool)
    edited[:size] = (took != takes[:size]) | (before.columns["lane"] != columns["lane"][:size])
    edited[:size] |= before.alive != after.alive[:size]
    parameters = list(trained_parameters(before).tensors)
    paths = list(dict.fromkeys([*after.texts["layer"], *parameters]))
    mine, chosen = np.zeros(size, bool), np.zeros(len(paths) + 1, bool)
    layer, phase = before.columns["layer"], before.columns["phase"]
    for words in map(dict, after.layers_asked or ()):
        fits = np.array([*_fits(after, words, paths), False])
        if fits[columns["layer"][edited]].any():
            chosen |= fits
            may_be = _encloses(calls, paths, fits, parameters)[layer] & _like(before, words)
            mine |= may_be & _may_hold(before, calls, fits, np.isin(paths, parameters))[phase]
    mine &= calls.unplaced & ~np.isin(phase, NOT_BY_LAYER)
    steps = [bool(step.get("covered")) for step in after.steps]
    covered = np.array([*steps, False])
    on_device = device_work(before) & before.alive & covered[before.columns["step"]]
    of_chosen = device_work(after) & chosen[columns["layer"]] & covered[columns["step"]]
    was, now = took[of_chosen[:size]].sum(), takes[of_chosen].sum()
    if not (unplaced := took[mine & on_device].sum()):
        return None
    share = min(abs(now - was) / was, 1.0) if was else 1.0
    number = max(sum(steps), 1)
    return UnplacedWork(took[on_device].sum() / number, unplaced / number, float(share), calls.where)


def known_as_a_whole(graph: Graph) -> tuple[np.ndarray, str]:
    """Return a mask of the tasks that may be of any repeated block, and what runs most of them."""
    calls, paths = whole_calls(graph), graph.texts["layer"]
    if calls is None:
        return np.zeros(graph.size, bool), ""
    blocks = {each for family in repeated_blocks(graph) for block in family for each in block.split(TOGETHER)}
    fits = np.array([any(within(path, block) for block in blocks) for path in paths] + [False])
    encloses = _encloses(calls, paths, fits, list(trained_parameters(graph).tensors))
    return calls.unplaced & encloses[graph.columns["layer"]], calls.where


def _fits(graph: Graph, words: dict[str, Any], paths: list[str]) -> list[bool]:
    """Tell which paths the words of a selection chose."""
    if "layer" in words:
        return [any(fnmatch.fnmatchcase(path, each) for each in words["layer"]) for path in paths]
    blocks = {each for block in matching_blocks(graph, words["block"]) for each in block.split(TOGETHER)}
    return [any(within(path, block) for block in blocks) for path in paths]


def _encloses(calls: WholeCalls, paths: list[str], fits: np.ndarray, parameters: list[str]) -> np.ndarray:
    """Tell of which layers, and at the end of none, work may be of the layers that fit.

    A model's own name is in no path: calls of it hold other layers, and it has no parameters by that name.
    """
    mine = [path for path, fit in zip(paths, fits.tolist(), strict=False) if fit]
    found = np.array([any(within(each, path) for each in mine) for path in paths] + [True])
    for code in calls.layers:
        nameless = not any(within(each, paths[code]) for each in parameters)
        found[code] |= code in calls.around or (nameless and bool(parameters))
    return np.asarray(found & ~fits)


def _may_hold(graph: Graph, calls: WholeCalls, fits: np.ndarray, has_parameters: np.ndarray) -> np.ndarray:
    """Tell by phase, and at the end for none, whether calls may hold layers that fit.

    Not where each with parameters, or with work in such a call, does its work outside: that of the
    backward pass, or all other.
    """
    columns = graph.columns
    backward = np.arange(len(PHASES) + 1) == phase_code("backward")
    outside = np.zeros((2, len(fits)), bool)
    there = np.flatnonzero(device_work(graph) & graph.alive & ~calls.inside)
    outside[backward[columns["phase"][there]].astype(np.int64), columns["layer"][there]] = True
    needs = np.append(has_parameters, False)
    needs[columns["layer"][calls.inside]] = True
    may_hold = np.asarray(~outside[:, needs & fits].all(axis=1) | ~outside[:, fits].any(axis=1))
    return may_hold[backward.astype(np.int64)]


def _like(graph: Graph, words: dict[str, Any]) -> np.ndarray:
    """Return a mask of the tasks that match the other words of a selection that are known in any call."""
    where: dict[str, Any] = {name: words[name] for name in ("kind", "name", "phase") if name in words}
    if "on" in words:
        (where["on"],) = words["on"]
    return matching(graph, np.arange(graph.size), where)[0]
