"""The small answers, each made of one object that `--json` prints."""

from __future__ import annotations

from daydream.agents.answers import (
    FEW,
    LONGEST_NOTE,
    SEVERAL,
    Candidate,
    Compared,
    Confirmed,
    Cost,
    DeviceMemory,
    Explained,
    Held,
    Info,
    Json,
    Memory,
    MemoryChange,
    Part,
    Range,
    Ranked,
    Side,
    WhatIf,
    interval,
    known,
    largest,
    milliseconds,
    notes,
    rounded,
    said,
    step,
)

REPLAY = (
    "The replay: where `replay_error` is far from 0, the simulation does not describe this program, and no "
    "prediction from this trace is worth more than that error."
)
NOT_KNOWN = "Nothing yet: no step was predicted, and `reason` says why."


def info_of(document: Json) -> Info:
    """Return what `info --json` says."""
    replay = document.get("replay") or {}
    return Info(
        step=step({**replay, "replay_error": replay.get("error")}),
        source=known(document.get("source")),
        devices=[said(each.get("name") or each.get("id")) for each in document["devices"]][:FEW],
        ranks=len(document["ranks"]),
        steps_covered=document["covered"],
        device_busy_share=rounded(document.get("device_busy")),
        rows=document["rows"],
        has_memory=document.get("memory") is not None,
        good_for={
            said(what): said(f"{verdict['answer']}: {verdict['why']}")
            for what, verdict in (document.get("verdicts") or {}).items()
        },
        notes=notes(document),
        falsified_by=REPLAY,
    )


def explained_of(document: Json) -> Explained:
    """Return what `explain --json` says."""
    return Explained(
        step=step(document),
        basis=document["basis"],
        verdict=said(document["verdict"], LONGEST_NOTE),
        bound=said(document["bound"]),
        causes=[Part(said(each["cause"]), each["ns"]) for each in document["causes"][:FEW]],
        avoidable=[_cost(each) for each in document["avoidable"][:FEW]],
        notes=notes(document),
        falsified_by=_saving_falsified(profiled=document["basis"] == "recorded") + REPLAY,
    )


def _saving_falsified(*, profiled: bool) -> str:
    said = "An avoidable cost is none if, with its `code` in the script, the step"
    if profiled:
        how = "`compare` the two traces, or `confirm` the what-if"
        return f"{said} of a new recording lies outside its `range_ns`: {how}. "
    return f"{said} without a profiler lies outside its `range_ns`: `confirm` the what-if. "


def _cost(document: Json) -> Cost:
    answers = [each for each in document["whatifs"] if each["predicted_ns"] is not None]
    best: Json = answers[0] if answers else {}
    return Cost(
        what=said(document["sentence"]),
        cost_ns=document["cost_ns"],
        whatif=known(best.get("whatif")),
        options={said(name): value for name, value in (best.get("options") or {}).items()},
        predicted_ns=best.get("predicted_ns"),
        range_ns=interval(best),
        saving_ns=document["saving_ns"],
        code=known(document["code"]),
    )


def ranked_of(document: Json, top: int) -> Ranked:
    """Return what `rank --json` says: the first of each table."""
    found = document["changes"]
    return Ranked(
        step=step(document),
        bound=known(document["bound"]),
        candidates=[_candidate(each) for each in found[:top]],
        pairs=[_candidate(each) for each in document["pairs"]],
        more=max(len(found) - top, 0),
        left_out=len(document["left_out"]),
        notes=notes(document),
        falsified_by="A candidate is wrong if, with its `code` in the script, the step of a new recording "
        "lies outside its `range_ns`: `compare` with `whatif` set to its name, or `confirm` it. " + REPLAY,
    )


def _candidate(document: Json) -> Candidate:
    return Candidate(
        name=said(document["optimization"]),
        predicted_ns=document["predicted_ns"],
        range_ns=interval(document),
        saving_ns=document["saving_ns"],
        speedup=rounded(document["speedup"]),
        code=known(document["code"]),
        needs=known(document["needs"]),
        waits_for=known(document["bound"]),
        reason=known(document["reason"]),
    )


def whatif_of(document: Json) -> WhatIf:
    """Return what `whatif --json` says."""
    memory, range_ns, name = document.get("memory"), interval(document), said(document["optimization"])
    return WhatIf(
        optimization=name,
        options={said(key): value for key, value in document["options"].items()},
        step=step(document),
        predicted_ns=document["predicted_ns"],
        range_ns=range_ns,
        speedup=rounded(document["speedup"]),
        reason=known(document["reason"]),
        code=known(document["code"]),
        causes_before=_parts((document["before"] or {}).get("ns_by_cause")),
        causes_after=_parts((document["after"] or {}).get("ns_by_cause")),
        memory=None if memory is None else _memory_change(memory),
        notes=notes(document),
        falsified_by=_falsified(name, range_ns),
    )


def _parts(by_name: Json | None) -> list[Part]:
    return [Part(*part) for part in largest(by_name)]


def _falsified(name: str, range_ns: Range) -> str:
    if range_ns is None:
        return NOT_KNOWN
    return (
        "A recording of the same script on the same machine with the change made, whose step is not "
        f"{milliseconds(range_ns)}: `compare` this trace with the new one and `whatif` {name}. The range "
        "is a 90 % interval: of ten right predictions one lies outside."
    )


def _memory_change(document: Json) -> MemoryChange:
    return MemoryChange(
        before_bytes=document["before_bytes"],
        after_bytes=document["after_bytes"],
        range_bytes=interval(document, "low_bytes", "high_bytes"),
        capacity_bytes=document["capacity_bytes"],
        fits=document["fits"],
    )


def memory_of(document: Json) -> Memory:
    """Return what `memory --json` says."""
    return Memory(
        devices=[_device(each) for each in document["devices"][:SEVERAL]],
        notes=notes(document),
        falsified_by="What the allocator counts over the same steps, `torch.cuda.max_memory_allocated()` on "
        "a GPU: it holds no more than `peak_bytes`, but for what the notes say is not counted.",
    )


def _device(document: Json) -> DeviceMemory:
    peak, capacity = document["peak_allocated_bytes"], document["capacity_bytes"]
    return DeviceMemory(
        device=said(document["device"]),
        rank=document["rank"],
        peak_bytes=peak,
        capacity_bytes=capacity,
        fits=None if peak is None or capacity is None else peak <= capacity,
        phase=known(document["peak_phase"]),
        layer=known(document["peak_layer"]),
        by_kind=[Held(*part) for part in largest(document["by_kind"])],
    )


def compared_of(document: Json) -> Compared:
    """Return what `compare --json` says."""
    before, after = _side(document["before"]), _side(document["after"])
    overlap = _overlap(before.range_ns, after.range_ns)
    predicted = document["before"]["prediction"] is not None
    changes = {_name(each): each["change_ns"] for each in reversed(document["layers"])}
    return Compared(
        before=before,
        after=after,
        speedup=rounded(document["speedup"]),
        prediction_error=rounded(document["error"]) if predicted else None,
        overlap=overlap,
        largest_changes=_parts({name: ns for name, ns in changes.items() if ns}),
        notes=notes(document),
        falsified_by=_comparison_falsified(predicted=predicted, overlap=overlap),
    )


def _comparison_falsified(*, predicted: bool, overlap: bool | None) -> str:
    if not predicted:
        return (
            "Two recordings of the unchanged script that differ as much: `compare` them first. Where "
            "`overlap` is true, the change may be noise."
        )
    if overlap is None:
        return NOT_KNOWN
    if overlap:
        return "Another pair of recordings, on a machine at rest, whose ranges do not meet; here they do."
    return "This pair did it: the step after the change lies outside the predicted range."


def _side(document: Json) -> Side:
    return Side(
        name=said(document["name"]),
        step_ns=document["step_ns"],
        range_ns=interval(document, "low_ns", "high_ns"),
        steps=document["steps"],
    )


def _overlap(one: Range, other: Range) -> bool | None:
    return None if one is None or other is None else one[0] <= other[1] and other[0] <= one[1]


def _name(change: Json) -> str:
    names = change["after"] or change["before"] or ["?"]
    return str(change.get("layer") or names[0])


def confirmed_of(document: Json) -> Confirmed:
    """Return what `confirm --json` says: all times are of the step without a profiler."""
    return Confirmed(
        optimization=said(document["optimization"]),
        baseline_ns=document["baseline_ns"],
        predicted_ns=document["predicted_ns"],
        range_ns=interval(document),
        confirmed_ns=document["confirmed_ns"],
        predicted_speedup=rounded(document["predicted_speedup"]),
        confirmed_speedup=round(document["confirmed_speedup"], 4),
        error=rounded(document["error"]),
        control=round(document["control"], 4),
        inside_range=document["inside"],
        code=known(document.get("code")),
        notes=notes(document),
        falsified_by="The confirmed figure by `control`: the unchanged step against itself, which a machine "
        "at rest keeps within 5 % of 1; further off, confirm again. The prediction by `inside_range`.",
    )
