"""What a trace holds, and whether that is good enough; with what `daydream collect` recorded of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.files.cache import MOST_BYTES, cache_folder, entry_bytes
from daydream.report.blocks import (
    Block,
    Facts,
    Notes,
    Text,
    Title,
    listed,
    percent,
    range_text,
    shortened,
    time_text,
)
from daydream.report.views.explanation import counted_sentences
from daydream.text import bytes_text, counted
from daydream.trace.recorded_steps import whole_recording

if TYPE_CHECKING:
    from daydream.report.info import Info
    from daydream.trace.trace import Trace

MOST_STREAMS = 6
NO_MEMORY = "not recorded: record with daydream collect, or profile_memory=True"
OF_A_RANGE = "not known of a range of steps"
NO_COUNTERS = (
    "none: --counters FILE gives what Nsight Compute, rocprof or others counted of the kernels"
)
MOST_REASONS = 3
MOST_BUCKETS = 8
MOST_KINDS = 4
MOST_SETTINGS = 5
MOST_NOTES = 2  # where not all is shown
LEAST_SHOWN = 0.0005
NOUNS = {  # of kinds of events
    "memcpy": ("copy", "copies"),
    "memset": ("fill",),
    "runtime": ("runtime call",),
    "sync": ("synchronization",),
    "blocked": ("blocked interval",),
}
DETAILS = {  # facts that are shown with -v
    "software",
    "optimizer",
    "buckets",
    "collectives",
    "events",
    "threads, streams",
    "launches",
    "synchronization",
}
QUESTIONS = {
    "replay": "replaying",
    "what-if": "what-ifs",
    "by phase": "  by phase",
    "by layer": "  by layer",
    "by dtype": "  by dtype",
}
TOLD = ("lr", "momentum", "betas", "weight_decay", "foreach", "fused")


def info(found: Info, *, verbose: bool = False) -> Iterator[Block]:
    """Return whether a trace is good enough, and what it holds; `verbose` all of it, and every note."""
    metadata = found.trace.metadata
    facts = {
        "trace": _recorded(found),
        "device": _device(found),
        "software": ", ".join(
            f"{name.removesuffix('_version').replace('_', ' ')} {value!s}"
            for name, value in found.versions.items()
        ),
        "model": _model(metadata.get("parameters", [])),
        "optimizer": "\n".join(map(_optimizer, metadata.get("optimizers", []))),
        "buckets": "\n".join(filter(None, map(_buckets, metadata.get("ddp", [])))),
        "collectives": _collectives(found.trace),
        "unprofiled": _unprofiled(metadata),
        "events": f"{found.rows:,}: "
        + ", ".join(
            counted(number, *NOUNS.get(kind, (kind,)))
            for kind, number in found.rows_by_kind.items()
        ),
        "threads, streams": _lanes(found),
        "steps": _steps(found),
        "launches": _launches(found),
        "synchronization": _waits(found),
        "phases": _phases(found),
        "memory": _memory(found, verbose=verbose),
        "counters": _counters(found, verbose=verbose),
        "kept": _kept(found) if verbose else "",
    }
    known = [each for each in facts.items() if each[1]]
    verdicts = {title: found.verdicts[name] for name, title in QUESTIONS.items()}
    headline = whole_recording(found.trace)
    notes = [each for each in dict.fromkeys(found.notes) if each not in headline]
    first = notes if verbose else notes[:MOST_NOTES]
    hidden = [] if verbose else [name for name, _ in known if name in DETAILS]
    yield from map(Text, headline)
    yield Title("good enough for")
    yield Facts(
        [(title, f"{each.answer}: {each.why}") for title, each in verdicts.items()],
        answers=True,
    )
    yield Title("recorded")
    yield Facts([each for each in known if each[0] not in hidden])
    yield Notes(first)
    if notes[len(first) :]:
        hidden.append(counted(len(notes) - len(first), "note"))
    if hidden:
        yield Text(listed(hidden), "-v adds: ", aside=True)


def _recorded(found: Info) -> str:
    ranks = found.ranks or [0]
    world = found.world_size
    names = listed(list(map(str, ranks))) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"
    text = f"{found.trace.origin}, {time_text(found.span_ns)}, "
    text += f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"
    return text + (f" of {world}" if world and world > ranks[-1] else "")


def _device(found: Info) -> str:
    devices = found.devices
    busy = found.device_busy
    if not found.on_device:
        return f"no device work was recorded{': CPU only' if found.covered else ''}"
    used = sorted({stream.device for stream in found.streams})
    names = {device.get("id"): str(device.get("name") or "") for device in devices}
    known = [names.get(number, "") for number in used]
    known = [*dict.fromkeys(filter(None, known if any(known) else names.values()))]
    text = listed(known) or " ".join(["unnamed", *filter(None, [found.vendor]), "device"])
    text += f", {'device' if len(used) == 1 else 'devices'} {listed(list(map(str, used)))}"
    if len(devices) > len(used):
        text += f" of {len(devices)}"
    return text if busy is None else f"{text}, busy {busy:.0%} of the complete steps"


def _lanes(found: Info) -> str:
    streams = sorted(found.streams, key=lambda stream: -stream.busy_ns)
    text = counted(found.threads, "CPU thread")
    shown = [
        f"{stream.name} ({counted(stream.tasks, 'task')}, {time_text(stream.busy_ns)})"
        for stream in streams[:MOST_STREAMS]
    ]
    if shown:
        text += f"; {', '.join(shown)}"
    more = len(streams) - MOST_STREAMS
    return text + (f" and {more} more" if more > 0 else "")


def _steps(found: Info) -> str:
    time = found.recorded_time
    share = f" ({time.covered_share:.0%} of the recording)" if time and found.covered else ""
    source = found.step_source or "unknown"
    text = f"{len(found.steps):,}, {found.covered:,} of them complete{share}, from {source}"
    times = [step.measured_ns or 0 for step in found.steps if step.covered]
    if times:  # the mean, as in all other answers
        text += f"\nas recorded {time_text(round(fmean(times)))}"
    if len(times) > 1:
        middle = time_text(round(median(times)))
        text += f" on average, {middle} in the median, {range_text(min(times), max(times))}"
    reasons: dict[str, list[str]] = {}
    for step in found.steps:
        if not step.covered:
            reasons.setdefault(str(step.why_not), []).append(str(step.name))
    for reason in [*reasons][:MOST_REASONS]:
        names = reasons[reason]
        who = shortened(names[0], 40) if len(names) == 1 else f"{len(names)} steps"
        text += f"\n{who} left out: {reason}"
    return text


def _launches(found: Info) -> str:
    total = found.device_rows
    if not total:
        return "none: no device work"
    text = f"{total - found.orphans:,} of {total:,} device tasks have the call that launched them"
    if found.queue_depth is None:
        return text
    learned = found.graph.facts.queue_learned
    how = "as measured here" if learned else "assumed: it was never full"
    return f"{text}; a stream holds {found.queue_depth:,} launches ({how})"


def _waits(found: Info) -> str:
    unresolved = found.unresolved_syncs
    how = ", ".join(f"{number:,} {name}" for name, number in found.event_waits.items() if number)
    text = "no stream waits for another"
    if how:
        times = counted(sum(found.event_waits.values()), "time")
        text = f"a stream waits for another {times} ({how})"
    calls = len(set(found.graph.syncs["task"].tolist())) + unresolved
    unknown = f", {unresolved:,} of them for unknown work" if unresolved else ""
    return f"{text}; {counted(calls, 'CPU call')} may wait for the device{unknown}"


def _phases(found: Info) -> str:
    if not found.phases:
        return "none known"
    shares = {**found.phases, "unknown": 1 - sum(found.phases.values())}
    parts = [f"{name} {percent(share)}" for name, share in shares.items() if share >= LEAST_SHOWN]
    assumed = found.phases_assumed
    guess = f" ({percent(assumed)} assumed forward)" if assumed >= LEAST_SHOWN else ""
    return f"of the {found.work} {', '.join(parts)}{guess}"


def _kept(found: Info) -> str:
    """Return whether the replay is kept for the next question; nothing where that was not to be."""
    entry = found.trace.cache
    folder = cache_folder()
    if entry is None or folder is None:
        return ""
    size = entry_bytes(entry.key)
    if size is not None:
        return f"the replay, for the next question: {bytes_text(size)} in {folder}"
    why = (
        f"no step replays, {folder} cannot be written, or it is more than {bytes_text(MOST_BYTES)}"
    )
    return f"nothing for the next question: {why}"


def _counters(found: Info, *, verbose: bool) -> str:
    """Return what was counted of kernels; where nothing was, how to give it, if there is room for all."""
    known = found.counters
    if known is None:
        return NO_COUNTERS if verbose and "kernel" in found.rows_by_kind else ""
    text = f"of {known['kernels']:,} of {counted(known['of'], 'kernel')}: {', '.join(known['quantities'])}"
    if known["windows"]:
        text += f"; sums of kernels {'; '.join(known['windows'])}"
    return "\n".join([text, *(counted_sentences(found.trace) if verbose else [])])


def _memory(found: Info, *, verbose: bool) -> str:
    """Return what was recorded of memory; that nothing was is said where there is room for all."""
    events = found.trace.memory
    metadata = found.trace.metadata
    if events is None or found.memory is None:
        without = NO_MEMORY.partition(":")[0] if metadata.get("profiler") else NO_MEMORY
        return (OF_A_RANGE if metadata.get("steps_read") else without) if verbose else ""
    devices = sorted(found.memory, key=lambda one: -one["peak_allocated_bytes"])
    several = len({one["rank"] for one in devices}) > 1
    parts = [counted(len(events), "event")]
    for one in devices if verbose else devices[:1]:
        owner = f"{one['device']} of rank {one['rank']}" if several else one["device"]
        how = "grew by up to" if one["since_start"] else "held up to"
        reserved = one["peak_reserved_bytes"]
        of = "" if reserved is None else f" of {bytes_text(reserved)} reserved"
        parts.append(f"{owner} {how} {bytes_text(one['peak_allocated_bytes'])}{of}")
    more = len(devices) + 1 - len(parts)
    return "; ".join([*parts, *([f"{counted(more, 'device')} more"] if more else [])])


# What `daydream collect` adds


def _model(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    elements = sum(prod(one["shape"]) for one in parameters)
    types = listed(sorted({str(one["dtype"]) for one in parameters}))
    text = f"{elements:,} parameters in {counted(len(parameters), 'tensor')}, {types}"
    frozen = sum(not one["requires_grad"] for one in parameters)
    if frozen:
        text += f", {frozen} of the tensors frozen"
    return f"{text}; gradients {bytes_text(sum(one['gradient_bytes'] for one in parameters))}"


def _optimizer(optimizer: dict[str, Any]) -> str:
    groups = optimizer["groups"]
    settings = groups[0]["settings"] if groups else {}
    known = {name: settings[name] for name in TOLD if name in settings}
    told = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value!s}"
        for name, value in list(known.items())[:MOST_SETTINGS]
    ]
    text = f"{optimizer['name']!s}{' (' + ', '.join(told) + ')' if told else ''}"
    if len(groups) > 1:
        text += f", {len(groups)} groups (the first one's settings)"
    tensors = sum(group["tensors"] for group in groups)
    return f"{text}, {counted(tensors, 'tensor')}, state {bytes_text(optimizer['state_bytes'])}"


def _buckets(ddp: dict[str, Any]) -> str:
    sizes = [bytes_text(bucket["bytes"]) for bucket in ddp.get("buckets", [])]
    if not sizes:
        return ""
    shown = sizes[:MOST_BUCKETS] + ["..."] * (len(sizes) > MOST_BUCKETS)
    cap = f"; limit {bytes_text(ddp['cap_bytes'])}" if ddp.get("cap_bytes") else ""
    return f"{counted(len(sizes), 'gradient bucket')} in the order they get ready: {', '.join(shown)}{cap}"


def _collectives(trace: Trace) -> str:
    """Return what was exchanged in a step, and whether the ranks agree."""
    found = collectives_of_steps(trace)
    if not found:
        return ""
    by_rank: dict[int, list[tuple[tuple[str, int], ...]]] = {}
    for (rank, _), kinds in sorted(found.items()):
        by_rank.setdefault(rank, []).append(kinds)
    first, *others = by_rank.values()
    typical = Counter(first).most_common(1)[0][0]
    told = []
    for name, number in Counter(name for name, _ in typical).most_common(MOST_KINDS):
        size = sum(size for other, size in typical if other == name)
        told.append(
            f"{number} {name} of {f'{bytes_text(size)} in total' if size else 'unknown size'}"
        )
    text = f"{listed(told)} in a step"
    if not others:
        return text
    same = all(each == first for each in others)
    return text + (", the same on every rank" if same else "; ranks differ in what they exchange")


def collectives_of_steps(trace: Trace) -> dict[tuple[int, int], tuple[tuple[str, int], ...]]:
    """Return the collectives of each covered step of each rank, in order: operation and bytes.

    Rows of a device where there are some, else calls on the host; bytes are 0 where unknown.
    """
    if "collective" not in trace.columns or "step" not in trace.columns:
        return {}
    known = (trace["collective"] >= 0) & (trace["step"] >= 0)
    rows = known & trace.is_kind("collective")
    chosen = np.flatnonzero(rows if rows.any() else known & trace.is_kind("operator"))
    steps = trace.metadata["steps"]
    numbers = trace["step"][chosen].tolist()
    sizes = [0] * len(chosen)
    if "bytes" in trace.columns:
        sizes = np.maximum(trace["bytes"][chosen], 0).tolist()
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for step, name, size in zip(numbers, trace.values("collective", chosen), sizes, strict=True):
        if steps[step].get("covered"):
            rank = int(steps[step].get("rank", 0))
            found.setdefault((rank, step), []).append((str(name), int(size)))
    return {key: tuple(each) for key, each in found.items()}


def _unprofiled(metadata: dict[str, Any]) -> str:
    known = metadata.get("unprofiled_step_ns")
    if not known:
        return ""
    steps = counted(len(known), "step")
    text = f"{time_text(median(known))} per step in the median of {steps} without a profiler"
    of_ranks = (rank.get("unprofiled_step_ns") for rank in metadata.get("ranks", []))
    medians = [median(times) for times in of_ranks if times]
    if len(medians) > 1:
        text += f"; ranks {range_text(min(medians), max(medians))}"
    return text
