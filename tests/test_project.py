"""What holds the project around the code together: workflows, versions, news fragments, what is promised."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import daydream
from daydream.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).resolve().parents[1]
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
    found: dict[Any, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
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
    found: set[str] = set()
    for each in PROJECT["optional-dependencies"][name]:
        inner = re.fullmatch(r"daydream-sim\[(.*)\]", each)
        found |= set().union(*map(extra, inner[1].split(","))) if inner else {each}
    return found


def group(name):
    """Return what a dependency group installs, those that it includes among them."""
    found: set[str] = set()
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
    trace = daydream.load(ROOT / "examples" / "mlp_cpu.json.gz")

    printed = capsys.readouterr()
    assert printed.err == ""
    assert f'`"schema": {json.loads(printed.out)["schema"]}`' in STABILITY
    assert f"the version of its schema, which is {trace.metadata['schema_version']}." in STABILITY
