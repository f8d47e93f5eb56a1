"""What a trace holds, and whether that is good enough; with what `daydream collect` recorded of the run."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.files.cache import MOST_BYTES, cache_folder, entry_bytes
from daydream.predict.basis import whole_recording
from daydream.report.blocks import Block, Facts, Notes, Text, Title
from daydream.report.format import listed, percent, range_text, shortened, time_text
from daydream.report.views.explanation import counted_sentences
from daydream.text import bytes_text, counted

if TYPE_CHECKING:
    from daydream.report.overview import Overview
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
    "lanes",
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


def overview(found: Overview, *, verbose: bool = False) -> list[Block]:
    """Return whether a trace is good enough, and what it holds; `verbose` all of it, and every note."""
    said = found.to_json()
    metadata = found.trace.metadata
    versions = {
        name.removesuffix("_version").replace("_", " "): value
        for name, value in said["versions"].items()
    }
    optimizers = metadata.get("optimizers", [])
    buckets = metadata.get("ddp", [])
    facts = {
        "trace": _recorded(found, said),
        "device": _device(found, said),
        "software": ", ".join(f"{name} {value!s}" for name, value in versions.items()),
        "model": _model(metadata.get("parameters", [])),
        "optimizer": "\n".join(map(_optimizer, optimizers)),
        "buckets": "\n".join(filter(None, map(_buckets, buckets))),
        "collectives": _collectives(found.trace),
        "unprofiled": _unprofiled(metadata),
        "events": _events(said),
        "lanes": _lanes(said),
        "steps": _steps(found, said),
        "launches": _launches(found, said),
        "synchronization": _waits(found, said),
        "phases": _phases(found, said),
        "memory": _memory(found, said, verbose=verbose),
        "counters": _counters(found, said, verbose=verbose),
        "kept": _kept(found) if verbose else "",
    }
    known = {name: text for name, text in facts.items() if text}
    verdicts = said["verdicts"]
    answers = [
        (title, f"{verdicts[name]['answer']}: {verdicts[name]['why']}")
        for name, title in QUESTIONS.items()
    ]
    headline = whole_recording(found.trace)
    notes = [each for each in dict.fromkeys(said["notes"]) if each not in headline]
    hidden = [] if verbose else [name for name in known if name in DETAILS]
    shown = [fact for fact in known.items() if fact[0] not in hidden]
    first = notes if verbose else notes[:MOST_NOTES]
    blocks: list[Block] = [
        *map(Text, headline),
        Title("good enough for"),
        Facts(answers, answers=True),
        Title("recorded"),
        Facts(shown),
        Notes(first),
    ]
    hidden += [counted(len(notes) - len(first), "note")] if notes[len(first) :] else []
    return [*blocks, Text(listed(hidden), "-v adds: ", aside=True)] if hidden else blocks


def _recorded(overview: Overview, said: dict[str, Any]) -> str:
    ranks = said["ranks"] or [0]
    world = said["world_size"]
    names = listed(list(map(str, ranks))) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"
    text = f"{overview.trace.origin}, {time_text(said['span_ns'])}, "
    text += f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"
    return text + (f" of {world}" if world and world > ranks[-1] else "")


def _device(overview: Overview, said: dict[str, Any]) -> str:
    devices = said["devices"]
    busy = said["device_busy"]
    if not overview.on_device:
        return f"no device work was recorded{': CPU only' if overview.covered else ''}"
    used = sorted({stream["device"] for stream in said["streams"]})
    names = {device.get("id"): str(device.get("name") or "") for device in devices}
    known = [names.get(number, "") for number in used]
    known = [*dict.fromkeys(filter(None, known if any(known) else names.values()))]
    text = listed(known) or " ".join(["unnamed", *filter(None, [said["vendor"]]), "device"])
    numbers = listed(list(map(str, used)))
    text += f", {'device' if len(used) == 1 else 'devices'} {numbers}"
    text += f" of {len(devices)}" if len(devices) > len(used) else ""
    return text if busy is None else f"{text}, busy {busy:.0%} of the covered steps"


def _events(said: dict[str, Any]) -> str:
    kinds = said["rows_by_kind"].items()
    found = (counted(number, *NOUNS.get(kind, (kind,))) for kind, number in kinds)
    return f"{said['rows']:,}: {', '.join(found)}"


def _lanes(said: dict[str, Any]) -> str:
    streams = sorted(said["streams"], key=lambda stream: -stream["busy_ns"])
    shown = [
        f"{stream['name']} ({counted(stream['tasks'], 'task')}, {time_text(stream['busy_ns'])})"
        for stream in streams[:MOST_STREAMS]
    ]
    more = f" and {len(streams) - len(shown)} more" if streams[len(shown) :] else ""
    return (
        "; ".join([counted(said["threads"], "CPU thread"), *filter(None, [", ".join(shown)])])
        + more
    )


def _steps(overview: Overview, said: dict[str, Any]) -> str:
    steps = said["steps"]
    covered = overview.covered
    time = said["recorded_time"]
    share = f" ({time['covered_share']:.0%} of the recording)" if time and covered else ""
    source = said["step_source"] or "unknown"
    text = f"{len(steps):,}, {len(covered):,} covered{share}, from {source}"
    if covered:
        times = [int(step["measured_ns"]) for step in covered]
        text += (
            f"\nas recorded {time_text(round(fmean(times)))}"  # the mean, as in all other answers
        )
        if len(covered) > 1:
            middle = time_text(round(median(times)))
            text += f" on average, {middle} in the median, {range_text(min(times), max(times))}"
    reasons: dict[str, list[str]] = {}
    for step in steps:
        if not step["covered"]:
            reasons.setdefault(str(step["why_not"]), []).append(str(step["name"]))
    for reason, names in list(reasons.items())[:MOST_REASONS]:
        who = shortened(names[0], 40) if len(names) == 1 else f"{len(names)} steps"
        text += f"\n{who} not covered: {reason}"
    return text


def _launches(overview: Overview, said: dict[str, Any]) -> str:
    total = said["device_rows"]
    depth = said["queue_depth"]
    if not total:
        return "none: no device work"
    text = f"{total - said['orphans']:,} of {total:,} device tasks have the call that launched them"
    if depth is None:
        return text
    learned = overview.graph.facts.queue_learned
    how = "as measured here" if learned else "assumed: it was never full"
    return f"{text}; a stream holds {depth:,} launches ({how})"


def _waits(overview: Overview, said: dict[str, Any]) -> str:
    waits = said["event_waits"]
    unresolved = said["unresolved_syncs"]
    how = ", ".join(f"{number:,} {name}" for name, number in waits.items() if number)
    text = "no stream waits for another"
    if how:
        text = f"a stream waits for another {counted(sum(waits.values()), 'time')} ({how})"
    calls = len(set(overview.graph.syncs["task"].tolist())) + unresolved
    unknown = f", {unresolved:,} of them for unknown work" if unresolved else ""
    return f"{text}; {counted(calls, 'CPU call')} may wait for the device{unknown}"


def _phases(overview: Overview, said: dict[str, Any]) -> str:
    shares = said["phases"]
    assumed = said["phases_assumed"]
    if not shares:
        return "none known"
    shares = {**shares, "unknown": 1 - sum(shares.values())}
    parts = [f"{name} {percent(share)}" for name, share in shares.items() if share >= LEAST_SHOWN]
    guess = f" ({percent(assumed)} assumed forward)" if assumed >= LEAST_SHOWN else ""
    return f"of the {overview.time_of} {', '.join(parts)}{guess}"


def _kept(overview: Overview) -> str:
    """Return whether the replay is kept for the next question; nothing where that was not to be."""
    entry = overview.trace.cache
    folder = cache_folder()
    if entry is None or folder is None:
        return ""
    size = entry_bytes(entry.key)
    where = str(folder)
    if size is not None:
        return f"the replay, for the next question: {bytes_text(size)} in {where}"
    why = f"no step replays, {where} cannot be written, or it is more than {bytes_text(MOST_BYTES)}"
    return f"nothing for the next question: {why}"


def _counters(overview: Overview, said: dict[str, Any], *, verbose: bool) -> str:
    """Return what was counted of kernels; where nothing was, how to give it, if there is room for all."""
    found = said["counters"]
    if found is None:
        return NO_COUNTERS if verbose and overview.has_kernels else ""
    text = f"of {found['kernels']:,} of {counted(found['of'], 'kernel')}: {', '.join(found['quantities'])}"
    text += f"; sums of kernels {'; '.join(found['windows'])}" if found["windows"] else ""
    return "\n".join([text, *(counted_sentences(overview.trace) if verbose else [])])


def _memory(overview: Overview, said: dict[str, Any], *, verbose: bool) -> str:
    """Return what was recorded of memory; that nothing was is said where there is room for all."""
    events = overview.trace.memory
    metadata = overview.trace.metadata
    if events is None:
        without = NO_MEMORY.partition(":")[0] if metadata.get("profiler") else NO_MEMORY
        return (OF_A_RANGE if metadata.get("steps_read") else without) if verbose else ""
    devices = sorted(said["memory"], key=lambda one: -one["peak_allocated_bytes"])
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
    elements = sum(int(np.prod(one["shape"], dtype=np.int64)) for one in parameters)
    types = listed(sorted({str(one["dtype"]) for one in parameters}))
    text = f"{elements:,} parameters in {counted(len(parameters), 'tensor')}, {types}"
    frozen = sum(not one["requires_grad"] for one in parameters)
    text += f", {frozen} of the tensors frozen" if frozen else ""
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
    text += f", {len(groups)} groups (the first one's settings)" if len(groups) > 1 else ""
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
        sizes = np.maximum(np.asarray(trace["bytes"])[chosen], 0).tolist()
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
    others = metadata.get("unprofiled_step_ns_by_rank", {})
    if len(others) > 1:
        medians = [median(each) for each in others.values() if each]
        text += f"; ranks {range_text(min(medians), max(medians))}"
    return text
