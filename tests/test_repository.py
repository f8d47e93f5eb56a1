"""The repository: its project file, its examples, its public names, its sizes and what it may say."""

import contextlib
import copy
import gzip
import inspect
import json
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import size as tool
from shared import EXAMPLES, GPT, ROOT

import daydream
from daydream.cli import main

# What holds the project around the code together: workflows, versions, news fragments, what is promised


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
STABILITY = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
HIDDEN = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / ".pre-commit-config.yaml", ROOT / "mkdocs.yml", *(ROOT / ".github").rglob("*.yml")]
)
NO_FRAGMENTS = {"README.md", "section.jinja.md"}
FRAGMENT = re.compile(r"(\d+|[a-z][a-z0-9]*([-_][a-z0-9]+)*)\.(added|changed|fixed|removed)\.md")


def loaded(name):
    yaml = pytest.importorskip("yaml", reason="needs the extra `test`")
    found = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}  # YAML 1.1 has `on` for true


def steps(workflow):
    return [step for job in loaded(workflow)["jobs"].values() for step in job.get("steps", [])]


# Workflows, templates, hooks ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in HIDDEN if "/workflows/" in name])
def test_a_workflow_may_read_only_and_names_a_version_of_what_it_uses(name):
    actions = [step["uses"] for step in steps(name) if "uses" in step]

    assert loaded(name)["permissions"] == {"contents": "read"}
    assert [each for each in actions if not re.search(r"@(v\d+|release/v\d+)$", each)] == []


def test_only_the_job_that_publishes_may_ask_for_a_token():
    jobs = loaded(".github/workflows/release.yml")["jobs"]

    assert {name: job.get("permissions") for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}


def test_a_commit_is_checked_by_the_ruff_of_the_project():
    hooks = {each["repo"]: each for each in loaded(".pre-commit-config.yaml")["repos"]}
    (pinned,) = {
        each.removeprefix("ruff==")
        for each in [*PROJECT["optional-dependencies"]["dev"], *PYPROJECT["dependency-groups"]["lint"]]
        if each.startswith("ruff")
    }

    assert hooks["https://github.com/astral-sh/ruff-pre-commit"]["rev"] == f"v{pinned}"


# pyproject.toml ----------------------------------------------------------------------------------


def extra(name):
    """Return what an extra installs, those that it names among them."""
    found = set()
    for each in PROJECT["optional-dependencies"][name]:
        inner = re.fullmatch(r"daydream-sim\[(.*)\]", each)
        found |= set().union(*map(extra, inner[1].split(","))) if inner else {each}
    return found


def group(name):
    """Return what a dependency group installs, those that it includes among them."""
    found = set()
    for each in PYPROJECT["dependency-groups"][name]:
        found |= group(each["include-group"]) if isinstance(each, dict) else {each}
    return found


@pytest.mark.parametrize("name", ["test", "docs", "dev"])
def test_an_extra_and_the_group_of_its_name_are_the_same_list(name):
    assert extra(name) == group(name)


def test_versions_of_python_are_the_same_everywhere():
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if " :: 3." in each]
    first, last = named[0], named[-1]
    matrix = loaded(".github/workflows/ci.yml")["jobs"]["everything"]["strategy"]["matrix"]

    assert named == [f"3.{minor}" for minor in range(int(first[2:]), int(last[2:]) + 1)]
    assert PROJECT["requires-python"] == f">={first}"
    assert matrix["python"] == [first, last]
    assert f"| Python | {first} and newer | {first} and {last} |" in STABILITY
    assert PYPROJECT["tool"]["mypy"]["python_version"] == first
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + first.replace(".", "")


# News fragments ----------------------------------------------------------------------------------


def test_a_news_fragment_has_a_legal_name_and_says_something():
    files = [path for path in (ROOT / "changes").iterdir() if path.name not in NO_FRAGMENTS]

    assert [path.name for path in files if not FRAGMENT.fullmatch(path.name)] == []
    assert [path.name for path in files if not path.read_text(encoding="utf-8").strip()] == []
    assert [path.name for path in files if path.read_text(encoding="utf-8").startswith(("-", "*"))] == []


# What is promised --------------------------------------------------------------------------------


def test_the_stability_page_names_exactly_the_public_names():
    rows = re.findall(r"^\| (?:functions|classes|errors) \| (.*) \|$", STABILITY, re.MULTILINE)

    assert len(rows) == 3
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == daydream.__all__


def test_the_stability_page_names_the_schemas(capsys):
    with pytest.raises(SystemExit):
        main(["whatif", "--list", "--json"])
    trace = daydream.load(EXAMPLES / "mlp_cpu.json.gz")

    printed = capsys.readouterr()
    assert printed.err == ""
    assert f'`"schema": {json.loads(printed.out)["schema"]}`' in STABILITY
    assert f"the version of its schema, which is {trace.metadata['schema_version']}." in STABILITY


# The repository keeps its word: the README, the examples, what is packaged


README = (ROOT / "README.md").read_text()


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


# The package -------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere():
    assert PYPROJECT["project"]["version"] == daydream.__version__
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
        *PYPROJECT["tool"]["setuptools"]["packages"]
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


# What `tools/size.py` counts, on small texts


@pytest.mark.parametrize(
    ("text", "tokens", "lines"),
    [
        ("", 0, 0),
        ("a = 1  # one\n\n\nb = a\n", 6, 2),
        ('"""What it is."""\n\nx = 1\n', 3, 1),
        ('"""Two\nlines."""\n', 0, 0),
        ('def f():\n    """Doc.\n\n    More of it.\n    """\n    return "a b"\n', 7, 2),
        ('"one " "docstring"\nx = "not one"\n', 3, 1),
        ('x = """three\nwords here\n"""\n', 2 + 4, 3),
        ('def f():\n    a = 1\n    """three words\n    here"""\n', 5 + 3 + 3, 4),
        ('f"{a} b {c:.2f}"', 11, 1),
        ('f"{a.b(1, x)!r:>{w}}"', 2 + 2 + 8 + 2 + 1 + 1 + 3, 1),
        ('rf"""two words {x}\n"""', 2 + 1 + 3, 2),
    ],
)
def test_tokens_and_lines_of_small_texts(text, tokens, lines):
    assert tool.size(text) == (tokens, lines)


# What `help()` says of public names: what you get, in which unit and shape, errors, an example that runs


PUBLIC = {name: getattr(daydream, name) for name in daydream.__all__}
CLASSES = [
    name for name, thing in PUBLIC.items()
    if inspect.isclass(thing) and not issubclass(thing, Exception) and name != "Optimization"
]  # fmt: skip


def said(thing):
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_class_runs(name, monkeypatch, capsys):
    _, found, example = said(PUBLIC[name]).partition("Example::\n")

    assert found, f"{name} shows no example"
    lines = textwrap.dedent(example).strip().splitlines()
    assert 1 < len(lines) <= 5
    monkeypatch.chdir(ROOT)
    exec("\n".join(lines), {"daydream": daydream})
    assert "Error" not in capsys.readouterr().out


# The page of all JSON is what the records say, and the JSON has the keys of the records


def keys(record):
    return list(record.__struct_encode_fields__)


def test_the_page_is_current():
    done = subprocess.run([sys.executable, ROOT / "tools" / "json_page.py", "--check"], check=False)
    assert done.returncode == 0, "python tools/json_page.py writes it again"


def test_json_has_the_keys_of_the_records_and_their_values():
    replay = daydream.replay(GPT)
    answers = [
        replay.figures(),
        daydream.whatif(replay, "fused-adam"),
        daydream.rank(replay, ["fused-adam", "amp"], with_curves=False),
        daydream.explain(replay),
        daydream.sweep(replay, "scale", {"factor": [0.5]}, on="cpu"),
    ]
    for answer in answers:
        document = answer.to_json()
        assert list(document) == keys(answer)
        fields = dict(zip(keys(answer), answer.__struct_fields__, strict=True))
        for key, value in document.items():
            own = getattr(answer, fields[key])
            if isinstance(own, (int, float, str)):
                assert value == own


def test_a_copy_of_a_record_has_what_it_was_made_from():
    found = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
    assert copy.copy(found).bound == found.bound
    assert found.code == found.to_json()["code"] == "torch.optim.Adam(parameters, fused=True)"
