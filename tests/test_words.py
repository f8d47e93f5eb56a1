"""Plain words: what people read says *subject, verb, term*, and each thing has one name.

`REFUSED` holds the phrases of the old dialect, each with what to write instead. They are looked for in what
commands print on the examples (text, notes of `--json`, the HTML report), in the help of every command and
optimization, and in the texts of the sources. Terms are those of docs/glossary.md.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daydream.cli import COMMANDS, main
from daydream.transforms.registry import names

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
GPU, CPU = (str(ROOT / "examples" / name) for name in ("synthetic_gpt_gpu.json.gz", "mlp_cpu.json.gz"))

REFUSED = {  # pattern: what to write
    r"nine times (of|in) ten|nine cases (of|in) ten": "90 % interval",
    r"foretell|foretold": "predicted from, as in `predicted from a single-worker trace`",
    r"there is no (engine|option|optimization|command|figure|HTML|covered step)": "unknown X; choose A or B",
    r"next to nothing": "large but not worth removing; hardly any time",
    r"beside the critical path": "off the critical path",
    r"of unknown bound": "kernels (bound unknown)",
    r"further ones would take": "the steady step, and only where it differs",
    r"\bbeside\b": "during, next to, with, while",
    r"(?<!hidden )\bbehind\b": "after (in time); hidden behind may stay",
    r"\b(ms|us|MB|MiB|bytes|\}) in all\b": "in total",
    r"\b(ms|us|MB|MiB|calls|gradients|kernel|batch) a step\b|\} a step\b(?! of)": "per step",
    r"\bin the mean\b": "on average",
    r"\bis no (file|list|size|table|parquet|whole|multiple|number|option|plot)\b": "is not a",
    r"\b(does|do) not tell\b|\bthe trace tells\b": "does not show, has no",
    r"\b([Tt]akes|[Ss]tart|[Nn]eeds) so (many|much)\b": "this many",
    r"\bone's own\b": "your own",
    r"\bcame of it\b": "what was measured",
    r"\bheld to (their|its)\b": "fixed at",
    r"\b(is|are|was) taken (to|for)\b": "is assumed to",
    r"\bstood\b|\bCPU calls stand\b|\bstands? (in|between) ": "waited, was idle; is between, occurs in",
    r"\bmeetings?\b|\branks met\b": "matched collectives, ranks took part",
    r"\bby chance\b": "within noise",
    r"\bagain and again\b": "repeatedly",
    r"\bnot settled\b|\bhave settled\b|, settled \d": "steady, not in a steady state",
    r"\b[Ii]ts absence\b": "without it",
    r"\buntouched\b": "unchanged",
    r"\bknows nothing of\b": "leaves out",
    r"\bof single scenarios\b": "of some scenarios",
    r"\bworkers? foretells?\b": "predicted from a single-worker trace",
    r"\bcome ahead\b|\bcome along\b|\bgoes along\b": "say what happens",
}
ALLOWED = {  # texts of the sources in which a phrase is right
    "kernels of unknown bound",  # a key of JSON, kept until 0.3
}

COMMANDS_RUN = [
    *(f"{command} {trace}" for trace in (GPU, CPU) for command in (
        "info", "replay --trace", "replay -v --trace", "explain --trace", "explain -v --trace",
        "rank --trace", "rank -v --trace", "whatif fused-adam --trace",
        "whatif scale -v --on cpu --factor 0.5 --trace",
        "scaling --bandwidth 25 --gradient-mb 10 --jitter 0.02 --trace",
        "sweep scale --on cpu --set factor=0.5,1 --trace",
    )),
    f"whatif amp -v --trace {GPU}",
    f"whatif ddp --cluster dgx-a100 --gradient-mb 100 -v --trace {GPU}",
    f"compare -v {GPU} {CPU}",
    f"compare -v {GPU} {GPU} --whatif amp",
    "whatif --list",
]  # fmt: skip


def refused(text: str) -> list[str]:
    """Return the phrases of the old dialect in a text, each with what to write."""
    return [
        f"{found[0]!r} (...{text[max(found.start() - 40, 0) : found.end() + 30]!r}...): write {better!r}"
        for phrase, better in REFUSED.items()
        for found in re.finditer(phrase, text)
    ]


@pytest.fixture
def printed(capsys, monkeypatch):
    """Run a command line and return what it printed, stderr included, each run of spaces as one."""

    def call(command: str) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main(command.split())
        return " ".join("".join(capsys.readouterr()).split())

    return call


@pytest.mark.parametrize("command", COMMANDS_RUN, ids=lambda command: command.replace(str(ROOT), "")[:60])
def test_what_commands_print_is_in_plain_words(printed, command):
    text = printed(command)

    assert "internal error" not in text
    assert refused(text) == []


@pytest.mark.parametrize("command", ["explain", "replay", "rank", "whatif amp"])
def test_the_notes_of_json_are_in_plain_words(capsys, command):
    with pytest.raises(SystemExit):
        main([*command.split(), "--trace", GPU, "--json"])
    result = json.loads(capsys.readouterr().out)

    assert refused(" ".join(texts_of(result))) == []


def texts_of(value: object) -> Iterator[str]:
    """Return the sentences in an object of JSON: its keys and names keep what scripts rely on."""
    if isinstance(value, dict):
        for each in value.values():
            yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)
    elif isinstance(value, str) and value not in ALLOWED:
        yield value


def test_the_html_report_is_in_plain_words(printed, tmp_path):
    printed(f"whatif amp --trace {GPU} --html {tmp_path / 'report.html'}")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)

    assert refused(" ".join(page.split())) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_commands_is_in_plain_words(printed, command):
    assert refused(printed(f"{command} --help")) == []


@pytest.mark.parametrize("name", names())
def test_the_help_of_optimizations_is_in_plain_words(printed, name):
    assert refused(printed(f"whatif {name} --help")) == []


def test_the_texts_of_the_sources_are_in_plain_words():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for folder in ("daydream", "optimizations")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts_in(path)
        if " " in text and text not in ALLOWED  # what is one word is no sentence
        for said in refused(text)
    ]
    assert found == []


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """Return the texts of a file with their lines, those of docstrings left out; `{}` for what is put in."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inside |= {id(each) for each in node.values}
            pieces = [str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, " ".join("".join(pieces).split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, " ".join(node.value.split())


# The glossary ------------------------------------------------------------------------------------


def entries() -> list[tuple[str, str]]:
    """Return the terms and what they mean."""
    text = GLOSSARY.read_text(encoding="utf-8")
    found = re.findall(r"^(\S.*)\n:   (.*(?:\n    .*)*)", text, re.MULTILINE)
    return [(term, " ".join(meaning.split())) for term, meaning in found]


def test_terms_are_in_alphabetical_order_and_explained_in_a_sentence():
    terms = [term.lower() for term, _ in entries()]

    assert terms == sorted(terms)
    assert len(set(terms)) == len(terms) > 60
    for term, meaning in entries():
        assert meaning.endswith("."), term
        assert not re.search(r"\.\s+[A-Z]", meaning), f"{term}: more than one sentence"


def test_the_causes_of_a_step_are_in_the_glossary():
    from daydream.simulate.critical_path import PathCause

    terms = {each.strip().lower() for term, _ in entries() for each in term.split(",")}
    shown = {cause.label.lower() for cause in PathCause}
    known = {
        "copies",
        "inserted edges",
        "launch-bound cpu",
        "cpu operators",
    }  # plain enough, or by their word
    known |= {"compute-bound kernels", "memory-bound kernels"}

    assert shown - terms - known == set()
