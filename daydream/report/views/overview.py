"""What a trace holds, and whether that is good enough; with what `daydream collect` recorded of the run."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.counters.listing import counted_in
from daydream.files.cache import MOST_BYTES, cache_folder, entry_bytes
from daydream.memory.recorded import recorded_memory
from daydream.predict.basis import whole_recording
from daydream.report.blocks import Block, Facts, Notes, Text, Title
from daydream.report.format import listed, percent, range_text, shortened, time_text
from daydream.report.overview import rows_by_kind, span_ns, step_spread
from daydream.report.views.explanation import counted_sentences
from daydream.text import bytes_text, counted
from daydream.trace.recorded_time import recorded_time

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
LEAST_SHOWN = 0.0005
NOUNS = {  # of kinds of events
    "memcpy": ("copy", "copies"),
    "memset": ("fill", "fills"),
    "runtime": ("runtime call",),
    "sync": ("synchronization",),
    "blocked": ("blocked interval",),
}
DETAILS = (
    "software",
    "optimizer",
    "buckets",
    "collectives",
    "events",
    "lanes",
    "launches",
    "synchronization",
)
MOST_NOTES = 2  # where not all is shown
QUESTIONS = {
    "replay": "replaying",
    "what-if": "what-ifs",
    "by phase": "  by phase",
    "by layer": "  by layer",
    "by dtype": "  by dtype",
}

MIB = 1 << 20
MOST_SETTINGS = 5
TOLD = ("lr", "momentum", "betas", "weight_decay", "foreach", "fused")
MOST_KINDS = 4


def overview(found: Overview, *, verbose: bool = False) -> list[Block]:
    """Return whether a trace is good enough, and what it holds; `verbose` all of it, and every note."""
    facts = [
        ("trace", _recorded(found)),
        ("device", _device(found)),
        *_software(found),
        *collected_facts(found.trace),
        ("events", _events(found)),
        ("lanes", _lanes(found)),
        ("steps", _steps(found)),
        ("launches", _launches(found)),
        ("synchronization", _waits(found)),
        ("phases", _phases(found)),
        *_memory(found, verbose=verbose),
        *_counters(found, verbose=verbose),
        *(_kept(found) if verbose else []),
    ]
    verdicts = found.verdicts()
    answers = [(question, ": ".join(verdicts[name])) for name, question in QUESTIONS.items()]
    headline = whole_recording(found.trace)
    notes = [each for each in dict.fromkeys(found.notes()) if each not in headline]
    shown = facts if verbose else [each for each in facts if each[0] not in DETAILS]
    blocks: list[Block] = [
        *map(Text, headline),
        Title("good enough for"),
        Facts(answers, answers=True),
        Title("recorded"),
        Facts(shown),
        Notes(notes if verbose else notes[:MOST_NOTES]),
    ]
    hidden = [] if verbose else [name for name, _ in facts if name in DETAILS]
    more = 0 if verbose else len(notes[MOST_NOTES:])
    hidden += [counted(more, "note")] if more else []
    return [*blocks, Text(listed(hidden), "-v adds: ", aside=True)] if hidden else blocks


def _recorded(overview: Overview) -> str:
    metadata = overview.trace.metadata
    ranks = sorted({step.get("rank", 0) for step in overview.steps}) or [0]
    text = f"{metadata.get('source', 'unknown')!s}, {time_text(span_ns(overview.trace))}"
    world = metadata.get("world_size")
    names = (
        listed([str(rank) for rank in ranks]) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"
    )
    text += f", {'rank' if len(ranks) == 1 else 'ranks'} {names}"
    return text + (f" of {world}" if world and world > ranks[-1] else "")


def _device(overview: Overview) -> str:
    devices: list[dict[str, Any]] = overview.trace.metadata.get("devices", [])
    if not overview.on_device:
        return f"no device work was recorded{': CPU only' if overview.covered else ''}"
    used = sorted({stream["device"] for stream in overview.streams()})
    by_id = {device.get("id"): str(device.get("name") or "") for device in devices}
    names = dict.fromkeys(by_id.get(number) or "" for number in used)
    known = [name for name in names if name] or list(
        dict.fromkeys(name for name in by_id.values() if name)
    )
    text = listed(known) or f"unnamed {overview.trace.metadata.get('vendor', '')} device".replace(
        "  ", " "
    )
    text += (
        f", {'device' if len(used) == 1 else 'devices'} {listed([str(number) for number in used])}"
    )
    if len(devices) > len(used):
        text += f" of {len(devices)}"
    busy = overview.busy()
    return text + (f", busy {100 * busy:.0f} % of the covered steps" if busy is not None else "")


def _software(overview: Overview) -> list[tuple[str, str]]:
    versions: dict[str, Any] = overview.trace.metadata.get("versions", {})
    said = [
        f"{name.removesuffix('_version').replace('_', ' ')} {value!s}"
        for name, value in versions.items()
    ]
    return [("software", ", ".join(said))] if said else []


def _events(overview: Overview) -> str:
    found = [
        counted(number, *NOUNS.get(kind, (kind,)))
        for kind, number in rows_by_kind(overview.trace).items()
    ]
    return f"{len(overview.trace):,}: {', '.join(found)}"


def _lanes(overview: Overview) -> str:
    threads = sum(not lane.on_device for lane in overview.graph.lanes)
    text = counted(threads, "CPU thread")
    streams = sorted(overview.streams(), key=lambda stream: -stream["busy_ns"])
    if streams:
        shown = [
            f"{stream['name']} ({counted(stream['tasks'], 'task')}, {time_text(stream['busy_ns'])})"
            for stream in streams[:MOST_STREAMS]
        ]
        more = len(streams) - len(shown)
        text += f"; {', '.join(shown)}" + (f" and {more} more" if more else "")
    return text


def _steps(overview: Overview) -> str:
    steps, covered = overview.steps, overview.covered
    source = str(overview.trace.metadata.get("step_source", "unknown"))
    time = recorded_time(overview.trace)
    share = (
        f" ({100 * time.covered_share:.0f} % of the recording)"
        if time is not None and covered
        else ""
    )
    text = f"{len(steps):,}, {len(covered):,} covered{share}, from {source}"
    if covered:
        least, middle, most = step_spread(covered)
        mean = round(fmean(int(step["measured_ns"]) for step in covered))
        text += f"\nas recorded {time_text(mean)}"  # the mean, as all other answers have it
        if len(covered) > 1:
            text += f" on average, {time_text(middle)} in the median, {range_text(least, most)}"
    reasons: dict[str, list[str]] = {}
    for step in steps:
        if not step.get("covered"):
            reasons.setdefault(str(step.get("why_not")), []).append(str(step["name"]))
    for reason, names in list(reasons.items())[:MOST_REASONS]:
        who = shortened(names[0], 40) if len(names) == 1 else f"{len(names)} steps"
        text += f"\n{who} not covered: {reason}"
    return text


def _launches(overview: Overview) -> str:
    total = overview.device_tasks
    if not total:
        return "none: no device work"
    facts_ = overview.graph.facts
    text = f"{total - facts_.orphans:,} of {total:,} device tasks have the call that launched them"
    if facts_.queue_depth is not None:
        text += f"; a stream holds {facts_.queue_depth:,} launches "
        text += "(as measured here)" if facts_.queue_learned else "(assumed: it was never full)"
    return text


def _waits(overview: Overview) -> str:
    found = overview.graph.facts
    waits = found.event_waits
    parts = []
    if sum(waits.values()):
        how = [f"{number:,} {name}" for name, number in waits.items() if number]
        parts.append(
            f"a stream waits for another {counted(sum(waits.values()), 'time')} ({', '.join(how)})"
        )
    else:
        parts.append("no stream waits for another")
    calls = len(set(overview.graph.syncs["task"].tolist()))
    unresolved = found.unresolved_syncs
    said = f"{counted(calls + unresolved, 'CPU call')} may wait for the device"
    parts.append(said + (f", {unresolved:,} of them for unknown work" if unresolved else ""))
    return "; ".join(parts)


def _phases(overview: Overview) -> str:
    shares = overview.phase_shares()
    if not shares:
        return "none known"
    shares["unknown"] = 1 - sum(shares.values())
    parts = [f"{name} {percent(share)}" for name, share in shares.items() if share >= LEAST_SHOWN]
    assumed = float(overview.trace.metadata.get("phases_assumed", 0.0))
    guess = f" ({percent(assumed)} assumed forward)" if assumed >= LEAST_SHOWN else ""
    return f"of the {overview.time_of} {', '.join(parts)}{guess}"


def _kept(overview: Overview) -> list[tuple[str, str]]:
    """Return whether the replay is kept for the next question; nothing where that was not to be."""
    entry, folder = overview.trace.cache, cache_folder()
    if entry is None or folder is None:
        return []
    size, where = entry_bytes(entry.key), str(folder)
    if size is None:
        why = f"no step replays, {where} cannot be written, or it is more than {bytes_text(MOST_BYTES)}"
        return [("kept", f"nothing for the next question: {why}")]
    return [("kept", f"the replay, for the next question: {bytes_text(size)} in {where}")]


def _counters(overview: Overview, *, verbose: bool) -> list[tuple[str, str]]:
    """Return what was counted of kernels; where nothing was, how to give it, if there is room for all."""
    found = counted_in(overview.trace)
    if found is None:
        without = verbose and overview.has_kernels
        return [("counters", NO_COUNTERS)] if without else []
    text = f"of {found['kernels']:,} of {counted(found['of'], 'kernel')}: {', '.join(found['quantities'])}"
    if found["windows"]:
        text += f"; sums of kernels {'; '.join(found['windows'])}"
    rows = counted_sentences(overview.trace) if verbose else []
    return [("counters", "\n".join([text, *rows]))]


def _memory(overview: Overview, *, verbose: bool) -> list[tuple[str, str]]:
    """Return what was recorded of memory; that nothing was is said where there is room for all."""
    events = overview.trace.memory
    if events is None:
        why = OF_A_RANGE if overview.trace.metadata.get("steps_read") else NO_MEMORY
        if why is NO_MEMORY and overview.trace.metadata.get(
            "profiler"
        ):  # the advice is about torch's
            why = why.partition(":")[0]
        return [("memory", why)] if verbose else []
    devices = sorted(recorded_memory(events), key=lambda one: -one.peak_allocated_bytes)
    shown = devices if verbose else devices[:1]
    several = len({one.rank for one in devices}) > 1
    text = counted(len(events), "event")
    for one in shown:
        text += f"; {one.device}{f' of rank {one.rank}' if several else ''} "
        text += "grew by up to " if one.since_start else "held up to "
        text += bytes_text(one.peak_allocated_bytes)
        if one.peak_reserved_bytes is not None:
            text += f" of {bytes_text(one.peak_reserved_bytes)} reserved"
    more = len(devices) - len(shown)
    return [("memory", text + (f"; {counted(more, 'device')} more" if more else ""))]


# What `daydream collect` adds


def collected_facts(trace: Trace) -> list[tuple[str, str]]:
    """Return (name, text) for what `daydream collect` adds to a trace; empty for others."""
    metadata = trace.metadata
    lines = [
        ("model", _model(metadata.get("parameters", []))),
        ("optimizer", "\n".join(_optimizer(one) for one in metadata.get("optimizers", []))),
        ("buckets", "\n".join(_buckets(one) for one in metadata.get("ddp", []))),
        ("collectives", _collectives(trace)),
        ("unprofiled", _unprofiled(metadata)),
    ]
    return [(name, text) for name, text in lines if text]


def _model(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    elements = sum(int(np.prod(one["shape"], dtype=np.int64)) for one in parameters)
    types = listed(sorted({str(one["dtype"]) for one in parameters}))
    text = f"{elements:,} parameters in {counted(len(parameters), 'tensor')}, {types}"
    frozen = sum(not one["requires_grad"] for one in parameters)
    if frozen:
        text += f", {frozen} of the tensors frozen"
    return f"{text}; gradients {_size(sum(one['gradient_bytes'] for one in parameters))}"


def _optimizer(optimizer: dict[str, Any]) -> str:
    groups = optimizer["groups"]
    settings = groups[0]["settings"] if groups else {}
    told = [f"{name} {_setting(settings[name])}" for name in TOLD if name in settings][
        :MOST_SETTINGS
    ]
    text = f"{optimizer['name']!s}{' (' + ', '.join(told) + ')' if told else ''}"
    if len(groups) > 1:
        text += f", {len(groups)} groups (the first one's settings)"
    tensors = sum(group["tensors"] for group in groups)
    return f"{text}, {counted(tensors, 'tensor')}, state {_size(optimizer['state_bytes'])}"


def _setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _buckets(ddp: dict[str, Any]) -> str:
    sizes = [bucket["bytes"] for bucket in ddp.get("buckets", [])]
    if not sizes:
        return ""
    text = f"{counted(len(sizes), 'gradient bucket')} in the order they get ready: "
    text += ", ".join(_size(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
    cap = ddp.get("cap_bytes")
    return text + (f"; limit {_size(cap)}" if cap else "")


def _collectives(trace: Trace) -> str:
    """Return what was exchanged in a step, and whether the ranks agree."""
    found = collectives_of_steps(trace)
    if not found:
        return ""
    ranks = sorted({rank for rank, _ in found})
    by_rank = {
        rank: [kinds for (whose, _), kinds in found.items() if whose == rank] for rank in ranks
    }
    typical = Counter(by_rank[ranks[0]]).most_common(1)[0][0]
    kinds = Counter(name for name, _ in typical)
    sizes = {name: sum(size for other, size in typical if other == name) for name in kinds}
    in_all = {
        name: f"{_size(size)} in total" if size else "unknown size" for name, size in sizes.items()
    }
    told = [f"{number} {name} of {in_all[name]}" for name, number in kinds.most_common(MOST_KINDS)]
    text = f"{listed(told)} in a step"
    if len(ranks) > 1:
        same = all(by_rank[rank] == by_rank[ranks[0]] for rank in ranks)
        text += ", the same on every rank" if same else "; ranks differ in what they exchange"
    return text


def collectives_of_steps(trace: Trace) -> dict[tuple[int, int], tuple[tuple[str, int], ...]]:
    """Return the collectives of each covered step of each rank, in order: operation and bytes.

    Rows of a device where there are some, else calls on the host; bytes are 0 where unknown.
    """
    if "collective" not in trace.columns or "step" not in trace.columns:
        return {}
    known = (trace["collective"] >= 0) & (trace["step"] >= 0)
    rows = known & trace.is_kind("collective")
    if not rows.any():
        rows = known & trace.is_kind("operator")
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    steps = trace.metadata["steps"]
    covered = np.array([bool(step.get("covered")) for step in steps], bool)
    chosen = np.flatnonzero(rows)
    chosen = chosen[covered[trace["step"][chosen]]]
    names = trace.values("collective", chosen)
    sizes = (
        np.maximum(np.asarray(trace["bytes"])[chosen], 0)
        if "bytes" in trace.columns
        else [0] * len(chosen)
    )
    for step, name, size in zip(trace["step"][chosen].tolist(), names, sizes, strict=True):
        rank = int(steps[step].get("rank", 0))
        found.setdefault((rank, step), []).append((str(name), int(size)))
    return {key: tuple(each) for key, each in found.items()}


def _unprofiled(metadata: dict[str, Any]) -> str:
    times = metadata.get("unprofiled_step_ns")
    if not times:
        return ""
    steps = counted(len(times), "step")
    text = f"{time_text(median(times))} per step in the median of {steps} without a profiler"
    others = metadata.get("unprofiled_step_ns_by_rank", {})
    if len(others) > 1:
        medians = [median(each) for each in others.values() if each]
        text += f"; ranks {time_text(min(medians))} to {time_text(max(medians))}"
    return text


def _size(size: float) -> str:
    return f"{size / MIB:,.1f} MiB" if size >= MIB / 10 else f"{size / 1024:,.1f} KiB"
