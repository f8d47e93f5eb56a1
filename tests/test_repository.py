"""The repository keeps its word: the README, the examples, what is packaged."""

import contextlib
import gzip
import re
import shlex
import socket
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import daydream
from daydream.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(heading):
    return re.split(r"^## ", README.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


@cache
def files():
    """Return the files that are committed or would be."""
    return tuple(_files())


def _files():
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        yield from filter(Path.is_file, (ROOT / name for name in listed.stdout.splitlines()))
        return
    ignored = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split())]
    for path in filter(Path.is_file, ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        if not any(fnmatch(part, pattern) for part in inside for pattern in ignored):
            yield path


def content(path):
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode(errors="replace")


# The README --------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", ["Quick start", "Tests"])
def test_one_command_does_all_of_it(heading):
    (block,) = blocks("sh", section(heading))

    (command,) = block.strip().splitlines()
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_nothing_tells_anybody_to_install_a_package_of_our_name_from_an_index():
    by_name = (
        r"(pip3? install|uvx|pipx (run|install)|uv (pip install|add)) (-\S+ )*['\"]?daydream(-sim)?\b(?!/)"
    )
    install = re.compile(by_name)
    allowed = re.compile(r"daydream-sim(\[[a-z,]+\])? @ git")
    texts = [path for path in files() if path.suffix in {".md", ".py", ".yml", ".yaml", ".toml", ".ipynb"}]
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in texts
        if path != Path(__file__)
        for line in content(path).splitlines()
        if install.search(line + " ") and not allowed.search(line)
    ]

    assert found == []
    assert install.search("pip install 'daydream[mcp]'")


@pytest.mark.parametrize(
    ("start", "row"),
    [
        ("- Judged only, 26 changes on an H100", "| 16 bits, TF32, layout"),
        ("- Public recordings on A100, A10, T4 and Hopper, 50 rows", "| all six public series"),
        ("- H200, 62 changes", "| the same changes, 6 models, H200"),
    ],
)
def test_the_readmes_accuracy_is_that_of_the_page(start, row):
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    (cells,) = (line.split(" | ") for line in page.splitlines() if line.startswith(row))
    (told,) = (line for line in section("How far to trust it").splitlines() if line.startswith(start))

    assert f" {cells[2]} " in start
    assert f"median error {cells[3]}, worst {cells[5]}" in told
    assert "the interval holds in" not in told or f"the interval holds in {cells[6]}." in told


@pytest.mark.slow
def test_each_row_of_the_readme_works_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = re.findall(r"`daydream ([^`]*TRACE[^`]*)`", section("What it answers"))
    for command in (row for row in rows if "./my_optimization.py" not in row):  # that is the reader's
        words = shlex.split(command.replace("TRACE", "examples/train_gpt_h200.parquet"))
        words = [str(tmp_path / word) if word.endswith(".html") else word for word in words]
        if words[0] == "sql":
            pytest.importorskip("duckdb")
        with pytest.raises(SystemExit) as done:
            main(words)
        assert not done.value.code, command


def test_the_readmes_optimization_is_the_example():
    assert (EXAMPLES / "my_optimization.py").read_text() in blocks("python", section("Your own optimization"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / page).read_text())

    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


# The examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["synthetic_gpt_gpu.json.gz", "mlp_cpu.json.gz"])
def test_an_example_replays_within_one_per_cent(name):
    assert daydream.replay(EXAMPLES / name).max_error <= 0.01


# The package -------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere():
    assert PROJECT["project"]["version"] == daydream.__version__
    assert f"\n## {daydream.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_two_files_of_the_tests_have_one_name():
    # pytest imports tests, and they their helpers, by file name: the folders of the tests are no packages.
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
    importing = [
        path.name for path in (ROOT / "tests").rglob("*.py") if "from conftest " in path.read_text()
        and path.name != "test_repository.py"
    ]  # fmt: skip
    assert importing == []  # there are several of that name; which one is meant depends on the command


def test_every_package_is_listed_for_setuptools():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "daydream").rglob("*.py")}

    mapped = {"daydream.optimizations", "daydream.examples"}
    assert {*(".".join(folder.parts) for folder in folders), *mapped} == {
        *PROJECT["tool"]["setuptools"]["packages"]
    }


def test_no_file_names_a_place_on_somebodys_machine():
    places = {str(ROOT), str(Path.home()), sys.prefix, socket.gethostname()}
    # Short ones, such as a container's home or host name, could be part of other words.
    places = {place for place in places if len(place) > len("/some/dir")}
    anywhere = re.compile(r"(?<![\w.~-])/(?:home|mnt|opt|root|srv|tmp|Users|work)/\w[\w.-]*")
    in_tests = re.compile(r"(?<![\w.~-])/(?:opt|root|work)/\w[\w.-]*")  # they make up a home or two
    found = []
    for path in files():
        text, name = content(path), path.relative_to(ROOT).as_posix()
        pattern = in_tests if name.startswith("tests/") else anywhere
        found += [f"{name}: {place}" for place in {*places, *pattern.findall(text)} if place in text]

    assert found == []
