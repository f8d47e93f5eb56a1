"""Files appear whole or not at all, replace nothing unasked, and leave nothing behind."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from daydream import OutputError, Trace
from daydream.files.atomic import LOCK, own_folder, try_folder_of, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and locks as Unix has them")


def text(said):
    return lambda temporary: Path(temporary).write_text(said)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_fails_on_the_way_leaves_nothing(tmp_path):
    def fail(temporary):
        Path(temporary).write_text("half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(tmp_path / "out", fail)
    assert names(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    def write(temporary):
        Path(temporary).write_text("mine")
        (tmp_path / "out").write_text("theirs")

    with pytest.raises(OutputError, match="out exists already"):
        write_whole(tmp_path / "out", write)
    assert (tmp_path / "out").read_text() == "theirs"
    assert names(tmp_path) == ["out"]


@posix
@pytest.mark.parametrize("appears", [False, True])
def test_a_disk_without_hard_links_is_no_different(appears, tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)

    def write(temporary):
        Path(temporary).write_text("mine")
        if appears:
            (tmp_path / "out").write_text("theirs")

    if appears:
        with pytest.raises(OutputError, match="out exists already"):
            write_whole(tmp_path / "out", write)
    else:
        write_whole(tmp_path / "out", write)
    assert (tmp_path / "out").read_text() == ("theirs" if appears else "mine")
    assert names(tmp_path) == ["out"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_force_keeps_the_mode_of_the_file_that_it_replaces(mode, tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    target.chmod(mode)

    write_whole(target, text("after"), force=True)

    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == mode


@posix
def test_a_new_file_has_the_mode_that_the_user_gives_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "out", text("new"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


@posix
def test_of_a_link_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "out").write_text("before")
    (tmp_path / "link").symlink_to(Path("disk", "out"))

    write_whole(tmp_path / "link", text("after"), force=True)

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "out").read_text() == "after"
    assert names(tmp_path) == ["disk", "link"]


@posix
@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_what_is_no_file_is_never_replaced(what, tmp_path):
    target = tmp_path / "out"
    if what == "folder":
        target.mkdir()
    elif what == "pipe":
        os.mkfifo(target)
    else:
        target = Path("/dev/null")
    before = target.stat()

    with pytest.raises(OutputError, match="not a regular file"):
        Trace({}, {}).save(target, force=True)
    assert target.stat() == before


def test_a_name_of_any_length_can_be_written(tmp_path):
    write_whole(tmp_path / ("x" * 255), text("long"))
    write_whole(tmp_path / ("é" * 127), text("long"))

    assert len(names(tmp_path)) == 2


def test_a_folder_that_cannot_take_a_file_is_noticed_before_the_work(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        try_folder_of(tmp_path / "nowhere" / "out")
    try_folder_of(tmp_path / "out")
    assert names(tmp_path) == []


# What a killed process leaves ----------------------------------------------------------------------


KILLED = """
import os, pathlib
from daydream.files.atomic import write_whole
def write(temporary):
    pathlib.Path(temporary).write_text("half")
    write_whole("other", kill)
def kill(temporary):
    pathlib.Path(temporary).write_text("half")
    os.kill(os.getpid(), 9)
write_whole("out", write)
"""


@posix
def test_the_next_run_of_the_same_output_removes_what_a_killed_one_left(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == -9
    assert len(names(tmp_path)) == 2

    write_whole(tmp_path / "out", text("whole"))

    assert names(tmp_path)[1:] == ["out"]
    assert names(tmp_path)[0].startswith(".other.")


def half_removed(folder, patched):
    """Begin a folder, fill it, and be stopped when the first file of it has been removed."""
    real = Path.unlink

    def stop(path):
        real(path)
        raise KeyboardInterrupt

    with own_folder("out", folder) as left:
        for name in ("a", "z"):
            (left / name).write_text("half")
        patched.setattr(Path, "unlink", stop)


@posix
def test_who_is_stopped_while_it_removes_leaves_what_can_be_removed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        half_removed(tmp_path, patched)
    [left] = tmp_path.iterdir()
    assert len(names(left)) == 2
    assert LOCK in names(left)

    with own_folder("out", tmp_path) as folder:
        assert names(tmp_path) == [folder.name]


@posix
def test_what_a_living_writer_has_begun_is_left_alone(tmp_path):
    def write(temporary):
        Path(temporary).write_text("first")
        write_whole(tmp_path / "out", text("second"))

    with pytest.raises(OutputError, match="exists already"):
        write_whole(tmp_path / "out", write)
    assert (tmp_path / "out").read_text() == "second"
    assert names(tmp_path) == ["out"]


@posix
def test_what_has_no_locks_is_never_removed(tmp_path, monkeypatch):
    import fcntl

    def no_locks(*_args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with own_folder("out", tmp_path) as first, own_folder("out", tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()


@posix
def test_a_folder_whose_owner_came_no_further_is_removed(tmp_path):
    (tmp_path / ".out.abcd.daydream").mkdir()
    (tmp_path / ".out.mine").mkdir()
    (tmp_path / ".out.full.daydream").mkdir()
    (tmp_path / ".out.full.daydream" / "not ours").touch()

    with own_folder("out", tmp_path) as folder:
        assert names(folder) == [LOCK]
        assert names(tmp_path) == sorted([".out.full.daydream", ".out.mine", folder.name])


@posix
def test_a_folder_taken_away_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    import fcntl

    real, taken = fcntl.flock, []

    def late(lock, how):
        if not taken:  # another process had it first, and removes it
            [folder] = tmp_path.iterdir()
            (folder / LOCK).unlink()
            folder.rmdir()
            taken.append(folder)
        real(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with own_folder("out", tmp_path) as folder:
        assert folder.is_dir()
        assert folder not in taken
    assert names(tmp_path) == []
