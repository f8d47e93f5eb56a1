"""The overview of a trace as text: `daydream info`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from daydream.costs.counters.listing import counted_in
from daydream.files.cache import MOST_BYTES, cache_folder, entry_bytes
from daydream.memory.recorded import recorded_memory
from daydream.predict.basis import whole_recording
from daydream.predict.notes import recorded_time
from daydream.report.text.collected import collected_facts
from daydream.report.text.counted import counted_sentences
from daydream.report.text.layout import (
    MARGIN,
    Block,
    Facts,
    Screen,
    Title,
    Words,
    fitting,
    notes,
    printable,
    shortened,
)
from daydream.report.text.numbers import count, listed, percent, range_text, time_text
from daydream.report.text.overview import rows_by_kind, span_ns, step_spread
from daydream.text import bytes_text

if TYPE_CHECKING:
    from daydream.report.text.overview import Overview

MOST_STREAMS = 6
NO_MEMORY = "not recorded: record with daydream collect, or profile_memory=True"
OF_A_RANGE = "not known of a range of steps"
NO_COUNTERS = "none: --counters FILE gives what Nsight Compute, rocprof or others counted of the kernels"
MOST_REASONS = 3
LEAST_SHOWN = 0.0005
NOUNS = {  # of kinds of events
    "memcpy": ("copy", "copies"),
    "memset": ("fill", "fills"),
    "runtime": ("runtime call",),
    "sync": ("synchronization",),
    "blocked": ("blocked interval",),
}
FIRST = ("trace", "device", "steps", "memory", "counters")  # what stands on every screen
LAST = ("software", "events", "runs on", "launches", "waits")  # left out first where lines are few
QUESTIONS = {
    "replay": "replaying",
    "what-if": "what-ifs",
    "by phase": "  by phase",
    "by layer": "  by layer",
    "by dtype": "  by dtype",
}


def info_text(overview: Overview, *, verbose: bool = False) -> Screen:
    """Return whether a trace is good enough, and what it holds: a screen of it, `verbose` all of it."""
    found = [
        ("trace", _recorded(overview)),
        ("device", _device(overview)),
        *_software(overview),
        *collected_facts(overview.trace),
        ("events", _events(overview)),
        ("runs on", _lanes(overview)),
        ("steps", _steps(overview)),
        ("launches", _launches(overview)),
        ("waits", _waits(overview)),
        ("phases", _phases(overview)),
        *_memory(overview, verbose=verbose),
        *_counters(overview, verbose=verbose),
        *(_kept(overview) if verbose else []),
    ]  # fmt: skip
    verdicts = overview.verdicts()
    answers = []
    for name, question in QUESTIONS.items():
        answer, why = verdicts[name]
        answers.append((question, f"{answer}: {why}"))
    headline = whole_recording(overview.trace)
    top: list[Block] = [
        *map(Words, headline),
        Title("good enough for"),
        Facts(answers, answers=True),
        "",
        Title("recorded"),
    ]
    told = [each for each in dict.fromkeys(map(printable, overview.notes())) if each not in headline]
    if verbose:
        return Screen([*top, Facts(found), *notes(told)])
    detail = sorted((name for name, _ in found if name not in FIRST), key=_importance)
    screens = (
        Screen([*top, Facts([each for each in found if each[0] not in left_out]),
                *notes(told[:most]), *_more(left_out, len(told) - most)])
        for most in range(len(told), -1, -1)
        for left_out in (detail[:number] for number in range(len(detail) + 1))
    )  # fmt: skip
    return fitting(screens)


def _importance(name: str) -> int:
    return LAST.index(name) if name in LAST else len(LAST)


def _more(left_out: Sequence[str], others: int) -> list[Block]:
    """Return a line on what `-v` adds, if anything."""
    more = [*left_out, *([count(others, "note")] if others else [])]
    return [Words(f"-v adds: {listed(more)}", MARGIN, 2 * MARGIN)] if more else []


def _recorded(overview: Overview) -> str:
    metadata = overview.trace.metadata
    ranks = sorted({step.get("rank", 0) for step in overview.steps}) or [0]
    text = f"{printable(str(metadata.get('source', 'unknown')))}, {time_text(span_ns(overview.trace))}"
    world = metadata.get("world_size")
    names = listed([str(rank) for rank in ranks]) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"
    text += f", {'rank' if len(ranks) == 1 else 'ranks'} {names}"
    return text + (f" of {world}" if world and world > ranks[-1] else "")


def _device(overview: Overview) -> str:
    devices: list[dict[str, Any]] = overview.trace.metadata.get("devices", [])
    if not overview.on_device:
        return f"no device work was recorded{': CPU only' if overview.covered else ''}"
    used = sorted({stream["device"] for stream in overview.streams()})
    by_id = {device.get("id"): printable(str(device.get("name") or "")) for device in devices}
    names = dict.fromkeys(by_id.get(number) or "" for number in used)
    known = [name for name in names if name] or list(dict.fromkeys(name for name in by_id.values() if name))
    text = listed(known) or f"unnamed {overview.trace.metadata.get('vendor', '')} device".replace("  ", " ")
    text += f", {'device' if len(used) == 1 else 'devices'} {listed([str(number) for number in used])}"
    if len(devices) > len(used):
        text += f" of {len(devices)}"
    busy = overview.busy()
    return text + (f", busy {100 * busy:.0f} % of the covered steps" if busy is not None else "")


def _software(overview: Overview) -> list[tuple[str, str]]:
    versions: dict[str, Any] = overview.trace.metadata.get("versions", {})
    said = [
        f"{name.removesuffix('_version').replace('_', ' ')} {printable(str(value))}"
        for name, value in versions.items()
    ]
    return [("software", ", ".join(said))] if said else []


def _events(overview: Overview) -> str:
    found = [
        count(number, *NOUNS.get(kind, (kind,))) for kind, number in rows_by_kind(overview.trace).items()
    ]
    return f"{len(overview.trace):,}: {', '.join(found)}"


def _lanes(overview: Overview) -> str:
    threads = sum(not lane.on_device for lane in overview.graph.lanes)
    text = count(threads, "CPU thread")
    streams = sorted(overview.streams(), key=lambda stream: -stream["busy_ns"])
    if streams:
        shown = [
            f"{stream['name']} ({count(stream['tasks'], 'task')}, {time_text(stream['busy_ns'])})"
            for stream in streams[:MOST_STREAMS]
        ]
        more = len(streams) - len(shown)
        text += f"; {', '.join(shown)}" + (f" and {more} more" if more else "")
    return text


def _steps(overview: Overview) -> str:
    steps, covered = overview.steps, overview.covered
    source = printable(str(overview.trace.metadata.get("step_source", "unknown")))
    time = recorded_time(overview.trace)
    share = f" ({100 * time.covered_share:.0f} % of the recording)" if time is not None and covered else ""
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
        who = shortened(printable(names[0]), 40) if len(names) == 1 else f"{len(names)} steps"
        text += f"\n{who} not covered: {printable(reason)}"
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
        parts.append(f"a stream waits for another {count(sum(waits.values()), 'time')} ({', '.join(how)})")
    else:
        parts.append("no stream waits for another")
    calls = len(set(overview.graph.syncs["task"].tolist()))
    unresolved = found.unresolved_syncs
    said = f"{count(calls + unresolved, 'CPU call')} may wait for the device"
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
    size, where = entry_bytes(entry.key), printable(str(folder))
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
    text = f"of {found['kernels']:,} of {count(found['of'], 'kernel')}: {', '.join(found['quantities'])}"
    if found["windows"]:
        text += f"; sums of kernels {'; '.join(found['windows'])}"
    rows = counted_sentences(overview.trace) if verbose else []
    return [("counters", "\n".join([text, *rows]))]


def _memory(overview: Overview, *, verbose: bool) -> list[tuple[str, str]]:
    """Return what was recorded of memory; that nothing was is said where there is room for all."""
    events = overview.trace.memory
    if events is None:
        why = OF_A_RANGE if overview.trace.metadata.get("steps_read") else NO_MEMORY
        if why is NO_MEMORY and overview.trace.metadata.get("profiler"):  # the advice is about torch's
            why = why.partition(":")[0]
        return [("memory", why)] if verbose else []
    devices = sorted(recorded_memory(events), key=lambda one: -one.peak_allocated_bytes)
    shown = devices if verbose else devices[:1]
    several = len({one.rank for one in devices}) > 1
    text = count(len(events), "event")
    for one in shown:
        text += f"; {one.device}{f' of rank {one.rank}' if several else ''} "
        text += "grew by up to " if one.since_start else "held up to "
        text += bytes_text(one.peak_allocated_bytes)
        if one.peak_reserved_bytes is not None:
            text += f" of {bytes_text(one.peak_reserved_bytes)} reserved"
    more = len(devices) - len(shown)
    return [("memory", text + (f"; {count(more, 'device')} more" if more else ""))]
