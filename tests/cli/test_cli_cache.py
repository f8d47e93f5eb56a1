"""The second question about a trace is answered from the user's cache, in the same words."""

import os
import shutil
import sys

import pytest
from shared import TRACES

from daydream.files.cache import ENTRY, FOLDER, UNFINISHED

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept on Windows")

QUESTIONS = (
    ("replay",), ("whatif", "amp"), ("whatif", "scale", "--factor", "0.5", "--on", "gpu"), ("rank",),
    ("explain",), ("info",), ("memory",),
)  # fmt: skip
PUBLIC = (
    "kineto/a100_alexnet_cuda_sync.json.gz", "kineto/mi300x_sglang_decode_graph_replay.json.gz",
    "kineto/v100_dlrm_4_of_8_ranks", "nsys/a100_gpt2.7b_forward_compiled_cuda_graph.sqlite.gz",
    "odd/backward_thread.json.gz",
)  # fmt: skip


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("DAYDREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def entries(cache):
    """Return the entries that are kept."""
    return sorted(cache.glob("*" + ENTRY)) if cache.exists() else []


def same_answers(ask, trace, monkeypatch):
    """Ask each question without a cache, with an empty one, with a filled one; count the answers."""
    answered = 0
    for question in QUESTIONS:
        asked = [*question, *([trace] if question == ("info",) else ["--trace", trace]), "--json"]
        with monkeypatch.context() as patch:
            patch.setenv("DAYDREAM_CACHE", "off")
            without = ask(*asked)
        assert ask(*asked) == without, question
        assert ask(*asked) == without, question
        answered += without.code == 0
    return answered


@pytest.mark.parametrize("trace", ["step.parquet", "step.json.gz", "ranks"])
def test_answers_are_the_same_to_the_byte(ask, cache, trace, monkeypatch):
    assert same_answers(ask, trace, monkeypatch) >= 5
    assert len(entries(cache)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_answers_about_public_traces_are_the_same(ask, cache, name, monkeypatch):
    if not (TRACES / name).exists():
        pytest.skip(f"the public trace {name} is not at hand")
    same_answers(ask, str(TRACES / name), monkeypatch)
    assert len(entries(cache)) == 1


def test_a_changed_trace_is_read_again_whatever_its_time_says(ask, folder, cache):
    ask("replay --trace step.json.gz --json")
    trace = folder / "step.json.gz"
    before = trace.stat()
    shutil.copyfile(folder / "ranks" / "rank0.json", trace)
    os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (
        ask("replay --trace step.json.gz --json").json()
        == ask("replay --trace step.json.gz --json --no-cache").json()
    )
    assert len(entries(cache)) == 2


def test_it_lies_in_the_users_cache_and_is_private(ask, tmp_path, monkeypatch):
    monkeypatch.delenv("DAYDREAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    ask("replay --trace step.parquet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ask("replay --trace step.parquet")
    for beneath in ("xdg", "home/.cache"):
        folder = tmp_path / beneath / "daydream" / FOLDER
        assert folder.stat().st_mode & 0o777 == 0o700
        (entry,) = entries(folder)
        assert entry.stat().st_mode & 0o777 == 0o600


def test_a_trace_that_cannot_be_judged_is_refused_as_before(ask, folder, cache):
    (folder / "empty.json").write_text('{"traceEvents": []}')
    first = ask("replay --trace empty.json")
    assert first.code == 1
    assert ask("replay --trace empty.json") == first == ask("replay --trace empty.json --no-cache")
    assert ask("replay --trace missing.parquet").code == 1
    assert entries(cache) == []


def test_what_was_used_longest_ago_goes_first(ask, cache, monkeypatch):
    ask("replay --trace step.parquet")
    (first,) = entries(cache)
    ask("replay --trace step.json.gz")
    (second,) = set(entries(cache)) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    ask("replay --trace step.parquet")  # used again
    (cache / f"old{UNFINISHED}").write_bytes(b"of a process that was killed")
    os.utime(cache / f"old{UNFINISHED}", (1, 1))
    (cache / f"new{UNFINISHED}").write_bytes(b"of one that still writes")
    most = sum(entry.stat().st_size for entry in entries(cache)) + 1000
    monkeypatch.setattr("daydream.files.cache.MOST_BYTES", most)
    ask("replay --trace step.json.gz --steps auto")
    assert len(entries(cache)) == 2
    assert first in entries(cache)
    assert second not in entries(cache)
    assert not (cache / f"old{UNFINISHED}").exists()
    assert (cache / f"new{UNFINISHED}").exists()
    assert sum(entry.stat().st_size for entry in entries(cache)) <= most


def test_info_tells_what_is_kept(ask, cache, monkeypatch):
    said = " ".join(ask("info -v step.parquet").out.split())
    assert f"the replay, for the next question: {entries(cache)[0].stat().st_size / 2**10:.1f} KiB" in said
    assert "kept" not in ask("info step.parquet").out
    assert "kept" not in ask("info -v step.parquet --no-cache").out

    entries(cache)[0].unlink()
    monkeypatch.setattr("daydream.files.cache.MOST_BYTES", 1000)
    assert "kept nothing for the next question: " in " ".join(ask("info -v step.parquet").out.split())
    assert entries(cache) == []
