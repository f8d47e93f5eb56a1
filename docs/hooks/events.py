"""What mkdocs calls as it builds the site: generated pages, their navigation, Markdown that it can read."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import click
import optimization_pages
from mkdocs.structure.files import File, Files

import daydream
from daydream.cli import daydream as command_line

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

WIDE = {"accuracy.md"}  # tables that need all of the page
ABOUT_COMMANDS = """\
What `daydream COMMAND --help` prints; `daydream whatif NAME --help` has the options of an optimization, as
its [page](optimizations.md) does. The result goes to stdout, everything else to stderr. Exit codes: 0 done,
1 bad input or no answer, 2 usage, 130 interrupted; `collect` passes on the script's own."""
PROMISED = ("daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms")
ABOUT_API = """\
Names are attributes of `daydream`, and those for optimizations of [three packages](extending.md). Times are
integer nanoseconds (`_ns`), sizes bytes. What goes wrong is a `DaydreamError` that says what was found, what
was needed and what to do."""
FENCE = re.compile(r"^ *(```|~~~)")
ITEM = re.compile(r"^([-*]|\d+\.) +")
COMMENT = re.compile(r"^<!--.*-->$")
PIPE = re.compile(r"`([^`]*)\\\|([^`]*)`")  # in a table; this parser would show the backslash
BLOCK = re.compile(r"^(\||[-*] |1\. )")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the optimizations to the navigation."""
    for section in config.nav or []:
        for pages in section.values():
            if "optimizations.md" in pages:
                pages.extend(optimization_pages.navigation())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made from docstrings."""
    made = {name: make() for name, make in GENERATED.items()} | optimization_pages.pages()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page as the site's parser needs it."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri in GENERATED or page.file.src_uri.startswith("optimizations/"):
        return markdown
    text = for_the_site(markdown, page.file.src_uri)
    return optimization_pages.linked(text) if page.file.src_uri == "optimizations.md" else text


def commands() -> str:
    """Return the help of every command, as the terminal shows it."""
    lines = ["# Commands", "", ABOUT_COMMANDS]
    context = click.Context(command_line, info_name="daydream", **command_line.context_settings)
    for name in command_line.list_commands(context):
        command = command_line.get_command(context, name)
        if command is not None:
            inner = click.Context(command, parent=context, info_name=name, terminal_width=96)
            lines += ["", f"## {name}", "", "```text", command.get_help(inner), "```"]
    return "\n".join(lines) + "\n"


def api() -> str:
    """Return the page of the public names, for mkdocstrings to fill."""
    homes = {name: getattr(daydream, name) for name in daydream.__all__}
    classes = [name for name, value in homes.items() if inspect.isclass(value)]
    errors = [name for name in classes if issubclass(homes[name], Exception)]
    classes = [name for name in classes if name not in errors]
    functions = [name for name in homes if name not in {*errors, *classes}]
    lines = ["# Python API", "", ABOUT_API]
    parts = {"From a trace to an answer": functions, "What you get": classes, "Errors": errors}
    for title, these in parts.items():
        lines += ["", f"## {title}"]
        for name in these:
            lines += ["", f"::: {_home('daydream', name)}.{name}"]
            if name in errors:
                lines += ["    options: {members: false}"]
    for package in PROMISED:
        module = importlib.import_module(package)
        lines += ["", f"## For optimizations: `{package}`"]
        for name in module.__all__:
            value = getattr(module, name)
            if name not in daydream.__all__ and (inspect.isclass(value) or inspect.isroutine(value)):
                lines += ["", f"::: {_home(package, name)}.{name}"]
    return "\n".join(lines) + "\n"


def _home(package: str, name: str) -> str:
    """Return the module that defines a public name of a package."""
    home = getattr(getattr(importlib.import_module(package), name), "__module__", "")
    return home if hasattr(importlib.import_module(home), name) else package


def for_the_site(text: str, place: str) -> str:
    """Return a page with lists indented by 4, tables and lists behind an empty line, no comments.

    `place` is the page's among the documents. Links to files beside docs/ become plain text.
    """
    above = place.count("/") + 1
    link_out = re.compile(rf"\[([^\]]+)\]\((?:\.\./){{{above},}}[^)]*\)")
    found: list[str] = []
    fenced, shift = False, 0
    for line in text.splitlines():
        inside = fenced
        if FENCE.match(line):
            fenced = not fenced
        elif not inside:
            if COMMENT.match(line):
                found.append("")
                continue
            if line and not line.startswith(" "):
                item = ITEM.match(line)
                if BLOCK.match(line) and _begins(line, found):
                    found.append("")
                shift = 4 - len(item.group(0)) if item else 0
        said = line if inside else PIPE.sub(r"<code>\1&#124;\2</code>", link_out.sub(r"\1", line))
        found.append(" " * shift + said if said.startswith(" ") else said)
    return "\n".join(found) + "\n"


def _begins(line: str, before: list[str]) -> bool:
    """Tell whether a line begins a table or a list right behind a paragraph."""
    last = before[-1] if before else ""
    if FENCE.match(last):
        return True
    if not last or last.startswith(("#", " ")):
        return False
    return not last.startswith("|") if line.startswith("|") else _paragraph(before)


def _paragraph(before: list[str]) -> bool:
    """Tell whether the lines since the last empty one have no item of a list."""
    for line in reversed(before):
        if not line:
            break
        if ITEM.match(line):
            return False
    return True


GENERATED = {"commands.md": commands, "api.md": api}
