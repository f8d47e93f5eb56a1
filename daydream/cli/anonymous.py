"""A trace without names, for people to attach to an issue: `daydream info --anonymous`.

What happened when is as it was, so the trace gives the same answers. Names are those of PyTorch and of vendors'
libraries; any other word is a number (`anon3`), the same one wherever it stands. `public_words.tsv` holds the
words that stay: names of the classes of torch.nn and torch.optim, capitalized, and the words that names of
operators, kernels and runtime calls consist of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from daydream.errors import GraphError
from daydream.lazy import regex
from daydream.predict.replay import replay
from daydream.trace import handle_map
from daydream.trace import metadata as schema
from daydream.trace.handle_map import DebugHandleMap
from daydream.trace.trace import Trace

WORD = regex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
SHORTEST = 3  # letters of a word that tells anything
CALL = regex(r"(cuda|cu|hip|hsa_|nccl|rccl)[A-Z]?\w*")  # into CUDA, HIP and their libraries
MODULE = regex(r"nn\.Module: (.+?)(_\d+)?")
# Ranges that PyTorch and its profiler name; any other was named by a person.
FRAMEWORK = regex(
    r"ProfilerStep|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel|FSDP|(autograd|nccl|gloo|c10d|aten)::?|"
    r"Torch-Compiled|## Call Compiled|CompiledF|Inductor|PyTorch|XLA|CUDA|DeepSpeed"
)
RANGES = ("annotation", "module")
AS_RECORDED = ("kind", "phase", "dtype", "shapes", "grid", "block", "collective")
FIELDS = {
    field
    for kind in [*vars(schema).values(), *vars(handle_map).values()]
    for field in getattr(kind, "__struct_fields__", ())
}
# Texts of the metadata by the name of their field: what they are, or nothing where they may tell anything.
LEFT_OUT = ("notes", "source", "origin_ns", "graph_breaks", "uncompiled_frames", "counted_windows")
SENTENCES = ("why_not", "failed", "changed_not_recorded", "description", "typical_run")
AS_THEY_ARE = (
    "step_source",
    "vendor",
    "profiler",
    "backend",
    "memory_from",
    "dtype",
    "device",
    "devices",
    "versions",
    "phase",
)
PATHS = ("layer", "parameters", "buffers")


class _Names:
    """What stands for each name; equal names have equal ones."""

    def __init__(self) -> None:
        known = Path(__file__).with_name("public_words.tsv").read_text(encoding="utf-8").split()
        self.classes = {word for word in known if word[0].isupper()}
        self.words = {word.lower() for word in known}
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> str:
        return f"anon{self.numbers.setdefault(text, len(self.numbers))}"

    def of_words(self, text: str) -> str:
        """Return a name of which words that are not public are numbers."""
        if CALL.fullmatch(text):
            return text

        def one(found: Any) -> str:
            word = found[0]
            is_public = len(word) < SHORTEST or word.lower() in self.words
            return word if is_public else self.number(word)

        return WORD.sub(one, text)

    def path(self, text: str) -> str:
        """Return a module path or a parameter's name, all parts numbers but the places in a list."""
        return ".".join(
            part if part.isdigit() or part in {"weight", "bias", ""} else self.number(part)
            for part in text.split(".")
        )

    def range(self, text: str) -> str:
        """Return the name of a range: words where PyTorch names it, else numbers."""
        if module := MODULE.fullmatch(text):
            kept = module[1] if module[1] in self.classes else self.number(module[1])
            return f"nn.Module: {kept}{module[2] or ''}"
        return self.of_words(text) if FRAMEWORK.match(text) else self.path(text)


def anonymous(trace: Trace) -> Trace:
    """Return a trace that has the same events without names, paths, machines and people.

    Names of operators, kernels and calls keep the words that are public. Layers, parameters and ranges that a
    person named are numbers. Source lines, notes and the file's name are left out.
    """
    names = _Names()
    columns = {name: column for name, column in trace.columns.items() if name != "stack"}
    named = trace["name"]
    known = trace.text("name")
    ranged = trace.is_kind(*RANGES)
    ranges = {
        known[code] for code in np.setdiff1d(named[ranged], named[~ranged]).tolist() if code >= 0
    }
    texts: dict[str, list[str]] = {}
    for name, values in trace.texts.items():
        if name in AS_RECORDED:
            texts[name] = values
        elif name in {"name", "op"}:
            texts[name] = [
                names.range(text) if text in ranges else names.of_words(text) for text in values
            ]
        elif name in columns:
            texts[name] = [names.path(text) for text in values]
    metadata = {
        name: _value(value, name, names)
        for name, value in trace.metadata.items()
        if name == "schema_version" or (name in FIELDS and name not in LEFT_OUT)
    }
    handles = trace.handles
    if handles is not None:
        document = json.loads(handles.to_json())
        document["entries"] = _value(document["entries"], "handles", names)
        handles = DebugHandleMap.from_json(json.dumps(document))
    return Trace(columns, texts, metadata, trace.memory, handles)


def as_before(trace: Trace, found: Trace) -> bool:
    """Return whether a trace without names replays, step by step, as the one that it was made of."""
    times = []
    for each in (trace, found):
        try:
            replayed = replay(each)
            times.append([(step.replayed_ns, step.measured_ns) for step in replayed.steps])
        except GraphError:  # there is no step to replay
            times.append([])
    return times[0] == times[1]


def _value(value: Any, field: str, names: _Names) -> Any:
    """Return a value of the metadata without names; a `name` is one of what the field around it holds."""
    if isinstance(value, dict):
        found = {}
        for key, each in value.items():
            known = key in FIELDS or key.isdigit() or field == "versions"
            inner = key if key in FIELDS and key != "name" else field
            found[key if known else names.of_words(key)] = _value(each, inner, names)
        return found
    if isinstance(value, list | tuple):
        return [_value(each, field, names) for each in value]
    if not isinstance(value, str) or field in AS_THEY_ARE:
        return value
    if field in SENTENCES:
        return value and "(left out)"
    return names.path(value) if field in PATHS else names.of_words(value)
