"""`daydream memory --snapshot`: the answer first, on one screen; JSON for scripts; one line for errors."""

import pickle

import pytest

MIB = 1 << 20
START = 1 << 40


def stack(line):
    return [{"filename": "/home/someone/gpt/model.py", "line": line, "name": "forward"}]


def made(path, name="forward"):
    """Write a snapshot: 30 blocks of 1 to 30 MiB, from as many lines, then all are freed."""
    events, at = [], START
    for line in range(1, 31):
        frames = [{**stack(line)[0], "name": name}]
        events += [
            {"action": "segment_alloc", "addr": at, "size": max(20, line + line % 2) * MIB, "stream": 0},
            {"action": "alloc", "addr": at, "size": line * MIB + 512, "stream": 0, "frames": frames},
        ]
        at += 64 * MIB
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    return path.name


@pytest.fixture
def file(folder):
    return made(folder / "s.pickle")


def test_the_peak_and_whether_it_fits_come_first(ask, file):
    done = ask("memory --snapshot", file, "--capacity", "24GB")

    first, *_ = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert first.startswith("cuda:0: peak ")
    assert " allocated, " in first
    assert "reserved: fits in 24 GB (" in first
    assert "gpt/model.py:30 forward" in done.out


@pytest.mark.parametrize(
    ("capacity", "verdict"),
    [
        ("700MiB", "too close to tell in 700 MiB ("),
        ("100MB", "does not fit in 100 MB"),
        ("1.5GiB", "fits in 1.5 GiB ("),
        ("104857600", "does not fit in 100 MiB"),
    ],
)
def test_the_capacity_is_told_as_typed(ask, file, capacity, verdict):
    done = ask("memory --snapshot", file, "--capacity", capacity)

    assert verdict in done.out.splitlines()[0]
    assert ("out of memory at request" in done.out) == verdict.startswith("does not")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "missing argument 'TRACE' or '--snapshot'"),
        ("--snapshot s.pickle --trace t.parquet", "give either a trace or '--snapshot'"),
        ("--snapshot s.pickle --by layers", "--by goes with a trace"),
        ("--trace t.parquet --by layers --html m.html", "leave --by out"),
        (
            "--snapshot s.pickle --allocator expandable:True",
            "unknown allocator setting 'expandable'",
        ),
        ("--snapshot s.pickle --allocator max_split_size_mb:1", "at least 20"),
        ("--snapshot s.pickle --capacity much", "'much' is not a size such as 24GB"),
        ("--snapshot s.pickle --capacity 0", "'0' is less than one byte"),
        ("--snapshot s.pickle --capacity -3GB", "'-3GB' is not a size"),
    ],
)
def test_mistakes_in_options_are_usage_errors(ask, file, args, said):
    done = ask(f"memory {args}")

    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_hostile_pickle_is_refused_and_not_run(ask, folder):
    class Calls:
        def __reduce__(self):
            return print, ("it ran",)

    (folder / "bad.pickle").write_bytes(pickle.dumps({"segments": Calls()}))
    done = ask("memory --snapshot bad.pickle")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "error: bad.pickle: refused, since its pickle has the opcode STACK_GLOBAL at byte "
    )
    assert len(done.err.splitlines()) == 1


def test_names_in_a_snapshot_do_not_steer_the_terminal(ask, folder):
    name = made(folder / "odd.pickle", name="\x1b[31mred\n")
    done = ask("memory --snapshot", name)

    assert "\x1b" not in done.out
    assert "?[31mred?" in done.out
