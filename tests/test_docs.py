"""The documentation keeps its word: commands run and print what is shown, the site builds without a warning.

In the README and the pages under docs/ every `console` block is run, in the order of the page and in one
folder that has the examples. A comment before a block says what is special about it:

    <!-- exits with 1 -->      it fails (or with 3), and what it says on stderr is shown
    <!-- needs: torch -->      it trains: run by the slow tests, its figures vary and are not compared
    <!-- needs: traces -->     it reads a public trace, and is skipped where there are none
    <!-- run -->               this Python block is run, and prints the `text` block behind it

A Python block with a title is a file in that folder. A last line `...` stands for more output. After a change
that is meant, `DAYDREAM_GOLDEN=write pytest tests/test_docs.py` writes the outputs again (`-m slow` those of
the slow tests); read the difference.
"""

import ast
import contextlib
import enum
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import click
import pytest
from shared import EXAMPLES, ROOT, TRACES

import daydream
import daydream.costs
import daydream.model
import daydream.transforms
from daydream.cli import daydream as group
from daydream.cli import main
from daydream.cli.commands import change_options
from daydream.transforms.registry import find, names

# The documentation keeps its word: commands run and print what is shown, the site builds without a warning


DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
WRITE = os.environ.get("DAYDREAM_GOLDEN") == "write"

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[+-]?\d[\d,.]*(?: (?:ns|us|ms|s)\b)?|\b(in|out)side\b")
TORCH, PUBLIC = "needs: torch", "needs: traces"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the mark before it and, of Python that is run, the output behind it."""

    mark: str
    language: str
    title: str
    text: str
    printed: str


def blocks_of(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        Block(*(found[name] or "" for name in ("mark", "language", "title", "text", "printed")))
        for found in BLOCK.finditer(text)
    ]


def marked(mark):
    return [page for page in PAGES if any(block.mark == mark for block in blocks_of(page))]


def rewrite(page, old, new):
    if WRITE and old != new:
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} is not once in {page}"
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as a reader has it: the examples, and the public traces if there are any."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    for sort in ("kineto", "nsys", "memory", "formats"):
        if (TRACES / sort).exists():
            (tmp_path / sort).symlink_to(TRACES / sort)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return tmp_path


def run(command, *, inside):
    """Return exit code, stdout and stderr of a command; of daydream's own within this process if asked."""
    words, _, target = command.partition(" > ")
    argv = shlex.split(words)
    if inside and argv[0] == "daydream":
        out, err = io.StringIO(), io.StringIO()
        printing = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with printing[0], printing[1], pytest.raises(SystemExit) as done:
            main(argv[1:])
        code, printed, said = int(done.value.code or 0), out.getvalue(), err.getvalue()
    else:
        process = subprocess.run(argv, check=False, capture_output=True, text=True)
        code, printed, said = process.returncode, process.stdout, process.stderr
    if target:
        Path(target).write_text(printed, encoding="utf-8")
        printed = ""
    return code, printed, said


def check(page, block, *, inside, same):
    """Run a console block and compare what it prints with what is shown."""
    first, *lines = block.text.splitlines()
    assert first.startswith("$ "), first
    wanted = {"exits with 1": 1, "exits with 3": 3}.get(block.mark, 0)
    failing = wanted > 0
    code, printed, said = run(first.removeprefix("$ "), inside=inside)
    assert code == wanted, said
    full = (printed + said if failing else printed).splitlines()
    cut = [*full[: len(lines) - 1], "..."] if lines[-1:] == ["..."] else full
    if WRITE and not same(lines, full):
        rewrite(page, f"```console\n{block.text}```", "\n".join(["```console", first, *cut]) + "\n```")
        return
    assert lines == cut if same is exactly else same(lines, full), "\n".join(["", *full])


def exactly(shown, printed):
    """Tell whether the lines are the same, up to a last line `...`."""
    return shown == printed or (shown[-1:] == ["..."] and shown[:-1] == printed[: len(shown) - 1])


def but_for_figures(shown, printed):
    """Tell whether each line that is shown was printed, in this order, whatever its numbers are."""
    rest = iter([" ".join(NUMBER.sub("#", line).split()) for line in printed])
    wanted = [" ".join(NUMBER.sub("#", line).split()) for line in shown if line != "..."]
    return all(any(line == each for each in rest) for line in wanted)


# What is shown -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_a_page_shows_what_is_printed(page, folder):
    for block in blocks_of(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.mark == "run":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, page, "exec"), {})
            before = f"{block.text}```\n\n```text\n"
            rewrite(page, before + block.printed, before + printed.getvalue())
            assert WRITE or block.printed == printed.getvalue()
        elif block.language == "console" and not block.mark.startswith("needs"):
            check(page, block, inside=True, same=exactly)
        else:
            assert block.mark in ("", TORCH, PUBLIC), block.mark


@pytest.mark.slow
@pytest.mark.parametrize("page", marked(PUBLIC))
def test_a_page_shows_what_is_printed_of_public_traces(page, folder):
    if not (folder / "kineto").exists():
        pytest.skip("the public traces are not at hand")
    for block in blocks_of(page):
        if block.mark == PUBLIC:
            check(page, block, inside=True, same=exactly)


@pytest.mark.slow
@pytest.mark.parametrize("page", marked(TORCH))
def test_a_page_shows_what_is_printed_where_something_trains(page, folder, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # on a machine that does other work too, two are slower than one
    for block in blocks_of(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.mark == TORCH:
            check(page, block, inside=False, same=but_for_figures)


# What is named -----------------------------------------------------------------------------------


def named(page):
    """Return the commands that a page names in passing: in code spans, in blocks for a shell or for CI."""
    text = (DOCS / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(daydream [a-z][^`]*)`", prose)
    for block in blocks_of(page):
        if block.language in ("sh", "yaml", "console"):
            yield from re.findall(r"^(?:\$ |\s*- run: )?(daydream [^>#\n]+)", block.text, re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_commands_that_a_page_names_exist_with_their_options(page):
    wrong = []
    for command in named(page):
        words = shlex.split(command)[1:]
        if words[0] in ("collect", "confirm"):  # behind the script are the script's own
            script = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
            words = words[:script]
        if words[0] == "calibrate" and "--tool" in words:  # likewise, behind the tool's own file
            script = max(
                (place for place, word in enumerate(words) if word.endswith(".py")), default=len(words)
            )
            words = words[:script]
        known = known_options(words)
        wrong += [f"{command}: {word}" for word in words if word.startswith("--") and word not in known]

    assert wrong == []


def known_options(words):
    """Return the options of a command, and those of the optimizations that are named."""
    command = group.get_command(click.Context(group), words[0])
    assert command is not None
    options = command.get_params(click.Context(command))
    own = set()
    if words[0] == "scaling":
        options += change_options([find("ddp")], options)
    elif (
        words[0] in ("whatif", "sweep", "confirm")
        and len(words) > 1
        and not words[1].startswith(("-", "NAME"))
    ):
        names = [name for name in words[1].split("+") if not name.endswith(".py")]
        options += change_options([find(name) for name in names], options)
        if ".py" in words[1]:  # a reader's file, with options of its own
            own = {word for word in words if word.startswith("--")}
    return own | {"--help"} | {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


# The site ----------------------------------------------------------------------------------------


class Loaded(HTMLParser):
    """The addresses that a page loads something from."""

    def __init__(self, text):
        super().__init__()
        self.found = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.found.add(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect"):
            self.found.add(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.slow
def test_the_site_builds_and_has_every_optimization_and_public_name(site):
    api = (site / "api.html").read_text(encoding="utf-8")
    there = set(re.findall(r'id="daydream\.(?:[\w.]+\.)?(\w+)"', api))

    assert {path.stem for path in (site / "optimizations").glob("*.html")} == set(names())
    assert set(daydream.__all__) - there == set()
    for package in (daydream.costs, daydream.memory, daydream.model, daydream.transforms):
        public = {name: getattr(package, name) for name in package.__all__}
        described = {
            name for name, each in public.items() if inspect.isclass(each) or inspect.isroutine(each)
        }
        assert described - there == set()


@pytest.mark.slow
def test_the_site_asks_no_other_host_for_anything(site):
    loaded = {
        each for path in site.rglob("*.html") for each in Loaded(path.read_text(encoding="utf-8")).found
    }

    assert {each for each in loaded if each.startswith(("http:", "https:", "//"))} == set()


def test_the_call_path_of_one_whatif_is_drawn_from_the_code():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "call_path.py"], capture_output=True, text=True, check=False
    )
    # At most 40 functions, and no call of a higher floor.
    assert done.returncode == 0, done.stdout + done.stderr
    page = DOCS / "architecture.md"
    text = page.read_text(encoding="utf-8")
    before, head, rest = text.partition("```text\ndaydream whatif amp\n")
    _, behind = rest.split("```", 1)
    if WRITE:
        page.write_text(f"{before}```text\n{done.stdout}```{behind}", encoding="utf-8")
    assert WRITE or done.stdout == text[len(before) + len("```text\n") : -len(behind) - 3]
    assert head


def test_the_format_that_the_guide_adds_is_read(tmp_path):
    from daydream.collect.importers.formats import Options

    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    known = {}
    exec(guide.partition("Lines of Mine")[2].partition('"""')[2].partition("```")[0], known)
    path = tmp_path / "a.mine"
    path.write_text("# mine 1\nkernel,3,7,1000,2000,gemm\ncall,41,7,500,900,launch\nkernel,3,8,x,2,y\n")

    (recording,) = known["read_mine"](path, Options())

    assert recording["start_ns"].tolist() == [0, 500]
    assert recording["correlation"].tolist() == [7, 7]
    assert recording.texts_of("name", [0, 1]) == ["launch", "gemm"]
    assert (recording["tid"][0], recording["stream"][1]) == (41, 3)
    assert recording.metadata["notes"] == ["1 row had no readable time and was left out."]


# What optimizations may import, and that what is promised to them changes on purpose only


FILES = sorted((ROOT / "optimizations").glob("*.py"))
GOLDEN = ROOT / "tests" / "golden" / "signatures.txt"
PAGE = ROOT / "docs" / "extending.md"
PACKAGES = ("daydream", "daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms")
WORDS = (  # of classes, besides public methods
    "__and__",
    "__bool__",
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__getattr__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__or__",
    "__sub__",
)


def imports(tree):
    """Yield module and name of everything of daydream that a file imports, at its top or later."""
    for node in ast.walk(tree):
        for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            module = getattr(node, "module", each.name) or ""
            if module.split(".")[0] in {"daydream", ""}:
                yield module, each.name


def is_promised(module, name):
    """Whether a file that ships may import it: of the packages also what no other file is promised."""
    if module in PACKAGES:
        names = importlib.import_module(module)._HOMES.values()
        return name == "stages" or any(name in each for each in names)
    of, _, sibling = module.rpartition(".")
    if module in (
        "daydream.instrument",
        "daydream.instrument.tools",
    ):  # what makes changes for real
        made = importlib.import_module(module)
        return name in getattr(made, "__all__", vars(made))
    theirs = (sibling, "apply", "memory")
    return of == "daydream.optimizations" and (sibling.startswith("_") or name in theirs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_optimization_imports_promised_names_only(path):
    found = list(imports(ast.parse(path.read_text(encoding="utf-8"))))

    assert [f"{module}: {name}" for module, name in found if not is_promised(module, name)] == []


# The signatures ----------------------------------------------------------------------------------


def written(value):
    """Return a default value as all versions of Python and numpy write it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return value if type(value).__repr__ is object.__repr__ else re.sub(r" at 0x\w+", "", repr(value))


def signature(function):
    found = inspect.signature(function)
    words, only_named = [], False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not only_named:
            words.append("*")
        only_named |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        hint = "" if each.annotation is each.empty else f": {annotation(each.annotation)}"
        default = "" if each.default is each.empty else f" = {written(each.default)}"
        words.append(f"{star}{each.name}{hint}{default}")
    returned = found.return_annotation
    back = "" if returned is found.empty else f" -> {annotation(returned)}"
    return f"({', '.join(words)}){back}"


def annotation(hint):
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def members(class_):
    """Yield a line for each public method and property, those of the project's base classes too."""
    for name in sorted(dir(class_)):
        home = next((base for base in class_.__mro__ if name in vars(base)), object)
        if (name.startswith("_") and name not in WORDS) or not home.__module__.startswith("daydream"):
            continue
        value = vars(home)[name]
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            get = value.fget if isinstance(value, property) else value.func
            yield f"{name}{signature(get).partition(')')[2]}"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{name}{signature(getattr(class_, name))}"
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"


def signatures(package):
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        value, full = getattr(module, name), f"{package}.{name}"
        value = getattr(value, name, value) if isinstance(value, ModuleType) else value  # daydream.simulate
        if package != "daydream" and name in daydream.__all__:
            yield f"{full} is daydream.{name}"
        elif inspect.isclass(value):
            bases = [base.__name__ for base in value.__bases__ if base.__module__.startswith("daydream")]
            head = "" if issubclass(value, Exception) else signature(value)
            yield f"class {full}{head}{f', a {bases[0]}' if bases else ''}"
            yield from (f"    {line}" for line in members(value))
        elif isinstance(value, ModuleType):
            yield f"module {full}: {', '.join(each for each in vars(value) if each.isupper())}"
        elif callable(value) and not hasattr(value, "__origin__"):
            yield f"{full}{signature(value)}"
        elif str(type(value)).startswith(("<class 'types.", "<class 'typing.")):
            yield f"{full} = {value}"
        else:
            yield f"{full}: {type(value).__name__}"


def test_signatures_of_public_names_are_as_reviewed():
    found = "\n".join(line for package in PACKAGES for line in signatures(package)) + "\n"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")

    assert found == GOLDEN.read_text(encoding="utf-8")


# The page ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_the_page_has_a_row_for_each_promised_name(package):
    text = PAGE.read_text(encoding="utf-8")
    part = re.search(rf"^## `{re.escape(package)}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    shown = re.findall(r"^\| `(\w+)[^`]*` \| .*$", part, re.MULTILINE)
    assert sorted(shown) == sorted(importlib.import_module(package).__all__)
