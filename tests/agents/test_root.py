"""What an agent may read: names below one folder, whatever they are spelled like."""

from __future__ import annotations

import pytest

from daydream.agents.questions import OutsideRootError, Root
from daydream.errors import DaydreamError


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
