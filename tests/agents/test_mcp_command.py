"""The MCP command and its root: what is found below it, what is refused, how an answer is cut."""

import sys
from pathlib import Path
from pkgutil import resolve_name
from unittest import mock

import msgspec
import pytest
from cli.command_line import daydream as command_line

from daydream.agents.questions import RECORDS, OutsideRootError, Root, brief, schema
from daydream.errors import DaydreamError

# `daydream mcp` without a client: what an answer holds, and what is said without the package


def run(*words):
    """Run `daydream mcp` where its package is missing."""
    with mock.patch.dict(sys.modules, {"mcp": None}):
        return command_line("mcp", *words, folder=".")


def test_help_and_the_skill_need_no_package():
    for words, first in ((["--help"], "Usage: daydream mcp"), (["--skill"], "---\nname: daydream")):
        done = run(*words).good()
        assert done.out.startswith(first)
    path = Path(run("--skill-path").out.strip())
    assert path.read_text(encoding="utf-8") == run("--skill").out


def test_without_the_package_it_says_what_to_install():
    done = run()
    assert done.code == 1
    assert done.out == ""
    assert "pip install -e '.[mcp]'" in done.err
    assert "Traceback" not in done.err


def test_an_answer_has_the_largest_parts_and_the_length_of_what_was_cut():
    document = {
        "schema": 1,
        "trace": "/home/someone/t.parquet",
        "speedup": 1.23456,
        "options": {"ratio": 0.000001},
        "notes": [f"note {number}\x1b[31m" for number in range(7)],
        "rules": ["x" * 1000],
        "uncertainty_ns": dict.fromkeys("abcdefgh", 1),
        "before": {"by_layer": {"a": 1, "b": -9, "c": 3, "d": 4, "e": 5, "f": 6}},
        "steps": [{"name": "1", "rank": 0, "replayed_ns": 10, "predicted_ns": None}],
    }

    found = brief("whatif", document, {})

    assert {"schema", "trace"}.isdisjoint(found)
    assert found["cut"] == {"notes": 7}
    assert found["notes"] == [f"note {number}?[31m" for number in range(5)]
    assert len(found["rules"][0]) == 140
    assert found["before"] == {"by_layer": {"b": -9, "f": 6, "e": 5, "d": 4, "c": 3}}
    assert (found["speedup"], found["options"]) == (1.2346, {"ratio": 0.000001})
    assert len(found["uncertainty_ns"]) == 8  # some may be unknown: none is larger
    assert found["steps"] == document["steps"]


def test_lists_within_lists_are_shorter_and_a_command_is_whole():
    command = ["daydream", "whatif", "amp"]
    document = {"avoidable": [{"whatifs": [{"command": command, "notes": ["a", "b"]}, {}]}] * 9}

    found = brief("explain", document, {"avoidable": 2})

    assert found == {"avoidable": [{"whatifs": [{"command": command, "notes": ["a"]}]}] * 2,
                     "cut": {"avoidable": 9}}  # fmt: skip


@pytest.mark.parametrize("tool", RECORDS)
def test_the_schema_of_an_answer_is_that_of_the_record(tool):
    record = resolve_name(RECORDS[tool])
    found = schema(tool)
    assert list(found["properties"]) == [*record.__struct_encode_fields__, "cut", "falsified_by"]
    assert found["$defs"] == msgspec.json.schema(record)["$defs"]


# What an agent may read: names below one folder, whatever they are spelled like


@pytest.fixture
def root(tmp_path):
    inside = tmp_path / "root"
    (inside / "runs").mkdir(parents=True)
    (inside / "runs" / "t.json").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    return Root(inside)


def test_a_file_below_the_root_is_found_by_any_of_its_names(root):
    path = str(root.folder / "runs" / "t.json")

    for name in ("runs/t.json", "./runs/../runs/t.json", path):
        assert root.file(name) == path
    assert root.file("runs") == str(root.folder / "runs")
    assert root.file(".") == str(root.folder)


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/passwd", "runs/../../secret.json", "..", "/", "~/../.."]
)
def test_a_name_that_leads_out_is_refused_whether_there_is_a_file_or_not(root, name):
    if name.startswith("~"):
        name = "~/" + "../" * 40 + "etc"
    with pytest.raises(OutsideRootError, match="outside the root"):
        root.file(name)
    with pytest.raises(OutsideRootError):
        root.value(name)


def test_a_link_is_followed_before_it_is_judged(root):
    (root.folder / "out.json").symlink_to("../secret.json")
    (root.folder / "in.json").symlink_to("runs/t.json")
    (root.folder / "up").symlink_to("..")

    assert root.file("in.json") == str(root.folder / "runs" / "t.json")
    for name in ("out.json", "up/secret.json", "up"):
        with pytest.raises(OutsideRootError):
            root.file(name)


def test_a_folder_with_a_link_that_leads_out_is_refused(root):
    assert root.file("runs")
    (root.folder / "runs" / "rank1.json").symlink_to(root.folder.parent / "secret.json")
    with pytest.raises(OutsideRootError):
        root.file("runs")


def test_a_circle_of_links_is_a_refusal(root):
    (root.folder / "a").symlink_to("b")
    (root.folder / "b").symlink_to("a")
    with pytest.raises(DaydreamError):
        root.file("a")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "x" * 300])
def test_what_can_be_no_name_is_a_refusal(root, name):
    with pytest.raises(DaydreamError):
        root.file(name)


def test_a_root_that_is_one_by_a_link_is_the_folder_it_leads_to(root, tmp_path):
    (tmp_path / "link").symlink_to(root.folder)
    assert Root(tmp_path / "link").folder == root.folder


def test_a_name_that_begins_as_the_root_does_is_not_below_it(root):
    beside = root.folder.with_name("rootless")
    beside.mkdir()
    with pytest.raises(OutsideRootError):
        root.file(str(beside))


def test_values_of_options_are_judged_part_by_part(root):
    for value in ("aten::(add|mul)", "layers.*", "a=runs/t.json,b=c", 2.5, True, "measured"):
        assert root.value(value) == value
    with pytest.raises(OutsideRootError):
        root.value("gemm=../secret.json,a=b")


def test_a_root_that_is_no_folder_is_said(root):
    for name in ("none", "runs/t.json"):
        with pytest.raises(DaydreamError, match="--root"):
            Root(root.folder / name)
