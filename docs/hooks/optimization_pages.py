"""A page for each optimization: its docstring, its signature, and what it gives on the example traces."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import daydream
from daydream.transforms import stages
from daydream.transforms.registry import Optimization, Option, find, names

ROOT = Path(__file__).resolve().parents[2]
ABOUT_EXAMPLES = (
    "The first trace is [synthetic](../tour.md#the-traces-that-come-along): it shows what the optimization "
    "does, not what a GPU would gain. [One table](../evaluation/optimizations.csv) has all of "
    "them on public traces of real GPUs."
)
TRACES = ("synthetic_gpt_gpu", "mlp_cpu")
COMMAND = re.compile(r'^    "([\w-]+)": (\{(?:.*\}|(?s:.*?)^    \})),$', re.MULTILINE)
USED = re.compile(r"\b_?[A-Z]\w+|\b_\w+|\w+(?=\()")  # names of what is of a file itself, or called
ENDS = ("STAGE", "EXCLUDES", "CODE", "memory", "apply", "tool")  # what a file says of all its commands
SENTENCE_END = re.compile(r"(?<=[.!?)])(?<!e\.g\.)(?<!i\.e\.)(?<!al\.) (?=[A-Z`])")
NOT_MODELLED = re.compile(r"\bnot modelled\b", re.IGNORECASE)
SEE = re.compile(r"\bsee ([a-z][a-z0-9-]+)\b")
DOCUMENT = re.compile(r"\bdocs/(\w+)\.md\b")
LIST_ENTRY = re.compile(r"^- `([\w-]+)`:", re.MULTILINE)
# What has to be given, where the options of the page of public traces match nothing in these two.
ON_EXAMPLES: dict[str, dict[str, Any]] = {
    "ddp": {"cluster": "p3"},
    "freeze": {"layers": {"synthetic_gpt_gpu": "layers.[0-2]*", "mlp_cpu": "[0-4]"}},
    "fsdp": {"cluster": "p3"},
    "gpu": {"speedup": 2.0},
    "metaflow": {"layers": {"synthetic_gpt_gpu": "layers.*.mlp.*", "mlp_cpu": "4"}, "factor": 0.5},
    "remove-layers": {"layers": {"synthetic_gpt_gpu": "layers.[45]*", "mlp_cpu": "[45]"}},
}


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its place among the documents."""
    return {f"optimizations/{name}.md": page(find(name)) for name in names()}


def navigation() -> list[dict[str, list[str]]]:
    """Return the pages under a heading for each stage."""
    by_stage: dict[str, list[str]] = {_capital(title): [] for title in stages.TITLES.values()}
    for name in names():
        by_stage[_capital(stages.TITLES[find(name).stage])].append(f"optimizations/{name}.md")
    return [{title: here} for title, here in by_stage.items() if here]


def linked(text: str) -> str:
    """Return the page of all optimizations with a link to each one's own."""
    return LIST_ENTRY.sub(r"- [`\1`](optimizations/\1.md):", text)


def page(optimization: Optimization) -> str:
    """Return the page of one optimization."""
    name = optimization.name
    summary, told, left_out = parts(optimization.help)
    lines = [f"# {name}", "", summary, "", "```sh", usage(optimization), "```"]
    lines += ["", "## What it does and assumes", "", *told]
    if optimization.options:
        lines += ["", "## Options", "", *options(optimization)]
    lines += ["", "## What it does not model", ""]
    lines += [f"- {each}" for each in left_out] or ["Nothing is named beyond the text above."]
    lines += ["", "## Can `confirm` make it?", "", confirmable(optimization)]
    lines += ["", "## On the example traces", "", *on_examples(optimization)]
    lines += ["", "## Together with others", "", together(optimization)]
    path = _path(optimization)
    code = "\n".join(f"    {line}".rstrip() for line in own_code(name, path).splitlines())
    lines += ["", f'??? note "Its code, of optimizations/{path.name}"', "", "    ```python", code, "    ```"]
    return "\n".join(lines) + "\n"


def own_code(name: str, path: Path) -> str:
    """Return the function of a command, and what no other command of its file uses."""
    lines, parts = path.read_text(encoding="utf-8").splitlines(), dict[str, str]()
    for node in ast.parse("\n".join(lines)).body:
        part = "\n".join(lines[node.lineno - 1 - len(getattr(node, "decorator_list", ())) : node.end_lineno])
        head = part if isinstance(node, ast.Assign) else getattr(node, "name", "")
        parts |= dict.fromkeys(re.findall(r"\w+", head.partition(" =")[0]), part)
    said = dict(COMMAND.findall(parts.pop("COMMANDS", "")))

    def used(command: str) -> set[str]:
        found, left = set(), [command.replace("-", "_"), *USED.findall(said.get(command, "")), *ENDS]
        while left:
            if (one := left.pop()) in parts and one not in found:
                found.add(one)
                left += USED.findall(parts[one])
        return found

    others = (other for other in names() if other != name and _path(find(other)) == path)
    own = used(name) - set().union(*map(used, others)) | {name.replace("-", "_")}
    return "\n\n".join(dict.fromkeys(part for each, part in parts.items() if each in own))


def _path(of: Optimization) -> Path:
    return Path(inspect.getsourcefile(of.function) or "")


def parts(text: str) -> tuple[str, list[str], list[str]]:
    """Return a docstring as summary, what it does and assumes, what it leaves out."""
    first, _, rest = text.partition("\n\n")
    told: list[str] = []
    left_out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", rest):
        if paragraph.lstrip().startswith("- "):
            told += [_with_links(paragraph), ""]
            continue
        kept = []
        for sentence in SENTENCE_END.split(" ".join(paragraph.split())):
            if NOT_MODELLED.search(sentence):
                left_out.append(_with_links(_capital(sentence.removeprefix("Not modelled: "))))
            else:
                kept.append(_with_links(sentence))
        if any(kept):
            told += [" ".join(kept), ""]
    return _with_links(" ".join(first.split())), told[:-1], left_out


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with_links(text: str) -> str:
    text = DOCUMENT.sub(r"[docs/\1.md](../\1.md)", text)
    return SEE.sub(
        lambda found: f"see [`{found[1]}`]({found[1]}.md)" if found[1] in names() else found[0], text
    )


def usage(optimization: Optimization) -> str:
    """Return the shortest command that asks for it."""
    needed = [f"{each.flag} {each.type.__name__.upper()}" for each in optimization.options if each.required]
    return " ".join(["daydream whatif", optimization.name, *needed, "TRACE"])


def options(optimization: Optimization) -> list[str]:
    """Return the table of options: what to type, what it is, what it takes, the default."""
    lines = ["| option | what it is | value | default |", "|---|---|---|---|"]
    for option in optimization.options:
        flag = f"--no-{option.flag[2:]}" if option.type is bool and option.default else option.flag
        lines.append(f"| `{flag}` | {option.help} | {values(option)} | {default(option)} |")
    return lines


def values(option: Option) -> str:
    """Return what may be typed for an option."""
    sorts = {int: "whole number", float: "number", bool: "switch", str: "text"}
    return ", ".join(f"`{choice}`" for choice in option.choices) or sorts[option.type]


def default(option: Option) -> str:
    """Return an option's default in words."""
    if option.required or option.type is bool:
        return "needed" if option.required else "not given"
    return "not set" if option.default is None else f"`{option.default}`"


def confirmable(optimization: Optimization) -> str:
    """Say whether `daydream confirm` can make the change, and what it then does."""
    if optimization.apply is None:
        return (
            "No: daydream cannot make this change in a running script. Make it yourself, record again, and "
            "[compare](../compare.md) the two traces."
        )
    told = " ".join((inspect.getdoc(optimization.apply) or "").split()).removeprefix(
        "Make the change for real: "
    )
    return (
        f"Yes: `daydream confirm {optimization.name} train.py` [predicts it, makes it and measures both]"
        f"(../guides/confirm.md). {_capital(told)}"
    )


def on_examples(optimization: Optimization) -> list[str]:
    """Return a table of what it gives on the traces that ship, asked while the site is built."""
    lines = [ABOUT_EXAMPLES, "", "| trace | replayed | predicted | speed&#8209;up |", "|---|---|---|---|"]
    for name in TRACES:
        replay, given = _replay(name), _given(optimization.name, name)
        words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        asked = f"<br>`{shlex.join(words)}`" if words else ""
        before = f"`{name}`{asked} | {replay.replayed_ns / 1e6:.3f}&nbsp;ms"
        try:
            answer = daydream.whatif(replay, optimization.name, **given)
        except daydream.DaydreamError as error:
            lines.append(f"| {before} | does not apply: {_escaped(' '.join(str(error).split()))} | |")
        else:
            lines.append(f"| {before} | {answer.predicted_ns / 1e6:.3f}&nbsp;ms | {answer.speedup:.2f}x |")
    return lines


def _given(optimization: str, trace: str) -> dict[str, Any]:
    """Return the options to ask an optimization with on an example trace."""
    options = ON_EXAMPLES.get(optimization) or _public_examples().get(optimization, {})
    return {key: value[trace] if isinstance(value, dict) else value for key, value in options.items()}


def _escaped(text: str) -> str:
    """Return text for a cell of a table: what is no code keeps its stars and underscores."""
    parts = text.replace("|", "&#124;").split("`")
    parts[::2] = [re.sub(r"([*_<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def together(optimization: Optimization) -> str:
    """Say when it is applied in `a+b`, and what it excludes."""
    others = (name for name in names() if optimization.name in find(name).excludes)
    excluded = {*optimization.excludes, *others}
    known = names()
    said = ", ".join(f"[`{name}`]({name}.md)" if name in known else f"`{name}`" for name in sorted(excluded))
    return f"Applied in the stage *{stages.TITLES[optimization.stage]}*. " + (
        f"Cannot be combined with {said}." if said else "Excludes no other."
    )


_replay = cache(lambda name: daydream.replay(ROOT / "examples" / f"{name}.json.gz"))
_public_examples = cache(
    lambda: import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
        (ROOT / "validation" / "cases.toml").read_text(encoding="utf-8")
    )["examples"]
)
