"""Bad input: one clear message, the right exit code, no traceback, nothing overwritten."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import daydream
from daydream.files.atomic import write_whole

FAILED, USAGE, INTERRUPTED = 1, 2, 130
REPLAY = ["replay", "--trace"]


def own_timeline(path):
    from daydream.report.perfetto import write

    write(path, daydream.replay(path.parent / "step.parquet"))


def foreign_parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2]}), path)


def newer_parquet(path):
    trace = daydream.load(path.parent / "step.parquet")
    trace.metadata["schema_version"] = 99
    trace.save(path)


def first(of, size, unpacked=bytes):
    """What writes the first bytes of a trace, for a file that was cut off."""
    return lambda path: path.write_bytes(unpacked((path.parent / of).read_bytes())[:size])


EXECUTION = b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch]"}]}'
BAD_TRACES = {  # a file, what it holds or what makes it, and what is said
    "truncated.json": (first("step.json.gz", 200_000, gzip.decompress), "truncated.json"),
    "truncated.json.gz": (first("step.json.gz", 20_000), "cut off or damaged"),
    "empty.json": (b"", "empty.json"),
    "notes.txt": (b"dear diary\n", "is not JSON, SQLite or parquet"),
    "other.json": (b'{"answer": 42}', "without a `traceEvents` list"),
    "latin.json": ('{"traceEvents": "é"}'.encode("latin-1"), "latin.json"),
    "none.json": (b'{"traceEvents": []}', "no operator, runtime call or device work"),
    "empty folder": (Path.mkdir, "holds no trace"),
    "nowhere.json": (lambda _: None, "no such file"),
    "et.json": (EXECUTION, "is a PyTorch execution trace"),
    "timeline.json.gz": (own_timeline, "timeline.json.gz is a timeline that daydream wrote"),
    "empty.parquet": (b"", "empty.parquet is not a parquet file: it is empty"),
    "foreign.parquet": (foreign_parquet, "daydream did not write it"),
    "newer.parquet": (newer_parquet, "has schema 99; this version reads up to 2. Upgrade daydream."),
    "cut.parquet": (first("step.parquet", 5_000), "cut.parquet"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
@pytest.mark.parametrize(
    "command", [["info"], REPLAY, ["whatif", "amp", "--trace"], ["import", "-o", "out.parquet"]]
)
def test_a_bad_trace_is_one_clear_message(ask, folder, command, name):
    holds, said = BAD_TRACES[name]
    path = folder / name
    if isinstance(holds, bytes):
        path.write_bytes(holds)
    else:
        holds(path)
    before = set(folder.iterdir())

    done = ask(*command, str(path))

    assert done.code == FAILED
    assert_clear(done)
    assert said in done.err
    assert set(folder.iterdir()) == before


BAD_QUESTIONS = {
    "info": (USAGE, "missing argument 'TRACE'"),
    "inf step.parquet": (USAGE, "unknown command 'inf'. Did you mean 'info'?"),
    "info step.parquet --what": (USAGE, "--what"),
    "info step.parquet --trace step.parquet": (USAGE, "one trace is needed, 2 are given"),
    "info step.parquet --steps often": (USAGE, "'often' is not 'auto'"),
    "info step.json.gz --steps auto --step-marker a": (USAGE, "exclude each other"),
    "info step.json.gz --step-marker (": (USAGE, "'(' is not a regular expression"),
    "info step.json.gz --step-marker nothing-like-it": (FAILED, "no annotation matches"),
    "info step.parquet --step-marker Profiler": (FAILED, "is an imported trace"),
    "replay": (USAGE, "missing argument 'TRACE'"),
    "replay --trace step.parquet -o out.svg": (USAGE, "ends in neither .json, .json.gz nor .et"),
    "replay --trace step.parquet -o nowhere/out.json": (FAILED, "there is no folder nowhere"),
    "replay --trace step.parquet -o step.json.gz": (FAILED, "exists already"),
    "replay --trace step.json.gz -o step.json.gz --force": (FAILED, "is read by this command"),
    "replay --trace step.parquet -o ranks.json": (FAILED, "not a regular file"),
    "whatif step.parquet": (FAILED, "Name a change before the trace, as in amp step.parquet"),
    "whatif amp --hmtl x.html --trace step.parquet": (
        USAGE,
        "no such option '--hmtl'. Did you mean '--html'",
    ),
    "import": (USAGE, "missing argument 'SOURCE...'"),
    "import step.json.gz": (FAILED, "step.parquet exists already"),
    "import step.json.gz -o out.json": (USAGE, "name it .parquet"),
    "import step.json.gz step.parquet -o out.parquet": (FAILED, "give it alone"),
    "whatif": (USAGE, "name an optimization"),
    "whatif amp": (USAGE, "missing argument 'TRACE'"),
    "whatif xyz --trace step.parquet": (FAILED, "`daydream whatif --list` shows those there are"),
    "whatif apm --trace step.parquet": (FAILED, "unknown optimization 'apm'. Did you mean 'amp'?"),
    "whatif amp+amp --trace step.parquet": (USAGE, "names amp twice"),
    "whatif amp+ --trace step.parquet": (USAGE, "'amp+' has an empty part"),
    "whatif ./mine.py --trace step.parquet": (FAILED, "no such file"),
    "whatif amp other --trace step.parquet": (USAGE, "2 are given: other step.parquet"),
    "whatif amp --math-speed 2 --trace step.parquet": (USAGE, "--math-speedup"),
    "whatif amp --math-speedup fast --trace step.parquet": (USAGE, "'fast' is not a valid float"),
    "whatif amp --math-speedup -2 --trace step.parquet": (USAGE, "must be above 0"),
    "whatif ddp --workers 64 --cluster dgx-a100:1 --gradient-mb 9 --trace step.parquet": (
        USAGE,
        "64 workers do not fit: cluster 'dgx-a100' was given 1 node of 8 GPUs. Give it 8 nodes",
    ),
    "scaling --workers 1,8,64 --cluster dgx-a100:1 --gradient-mb 9 --trace step.parquet": (
        USAGE,
        "64 workers do not fit",
    ),
    "scaling --workers 1,8 --cluster dgx-a100 --trace step.parquet": (FAILED, "say with --gradient-mb"),
    "scaling --workers 1..64 --trace step.parquet": (USAGE, "a list is written 1,2,4,...,64"),
    "scaling --workers 2-5 --trace step.parquet": (USAGE, "a list is written 2,3,4,...,5"),
    "whatif scale --trace step.parquet": (USAGE, "missing option '--factor'"),
    "whatif scale --factor -1 --trace step.parquet": (USAGE, "0 or more"),
    "whatif scale --factor 2 --on tpu --trace step.parquet": (USAGE, "cpu"),
    "whatif scale --factor 2 --name [ --trace step.parquet": (USAGE, "not a regular expression"),
    "whatif scale --factor 2 --name nothing-like-it --trace step.parquet": (FAILED, "no task matched"),
}


@pytest.mark.parametrize("question", BAD_QUESTIONS)
def test_a_bad_question_is_one_clear_message(ask, folder, question):
    (folder / "ranks.json").mkdir()
    code, words = BAD_QUESTIONS[question]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    done = ask(*question.split())

    assert_clear(done)
    assert words in done.err
    assert done.code == code
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def assert_clear(done):
    """One `error:`, what belongs to it indented below, no traceback, no result."""
    first, *others = done.err.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith("       ") for line in others)
    assert len(others) <= 4
    assert done.out == ""


def test_force_overwrites_and_only_force(ask, folder):
    wanted = folder / "out.json"
    wanted.write_text("precious")

    refused = ask("whatif amp --trace step.parquet -o out.json")
    kept = wanted.read_text()
    done = ask("whatif amp --trace step.parquet -o out.json --force")

    assert refused.code == FAILED
    assert kept == "precious"
    assert done.code == 0
    assert wanted.read_text() != "precious"
    assert not list(folder.glob(".*"))


@pytest.mark.skipif(os.name != "posix", reason="needs a named pipe")
def test_an_interrupt_exits_130_without_a_traceback(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    own = "def waiting(graph):\n    open('pipe').read()\n"  # opens when it runs, and waits for data
    (folder / "waiting.py").write_text(own)
    process = subprocess.Popen(
        [sys.executable, "-m", "daydream", "whatif", "./waiting.py", "--trace", "step.parquet"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with pipe.open("wb"):
        process.send_signal(signal.SIGINT)
    # Closed again before waiting: a signal that came just before the read is seen right after it.
    out, err = process.communicate(timeout=60)

    assert process.returncode == INTERRUPTED
    assert (out, err.strip()) == (b"", b"")


@pytest.mark.skipif(os.name != "posix", reason="needs a named pipe")
def test_what_may_never_end_is_refused_at_once(ask, folder):
    os.mkfifo(folder / "pipe.json")
    for name, what in (("pipe.json", "a pipe"), ("/dev/zero", "a device")):
        for args in (["info", name], ["whatif", "amp", "--trace", name], ["import", name, "-o", "x.parquet"]):
            done = ask(*args)
            said = f"error: {name} is {what}; a regular file was needed. Save it to a file first.\n"
            assert (done.code, done.err) == (FAILED, said)


def test_a_reader_that_leaves_is_no_error(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "daydream", "info", "step.parquet"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)

    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "daydream", "whatif", "--list"],
            cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip

    assert done.returncode == FAILED
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(tmp_path):
    def write(temporary):
        # as pyarrow says it: the temporary name, and the number of the error behind "Detail:"
        raise PermissionError(
            13, f"Failed to open local file '{temporary}'. Detail: [errno 13] Permission denied"
        )

    with pytest.raises(daydream.OutputError) as raised:
        write_whole(tmp_path / "x.parquet", write)

    assert str(raised.value) == f"cannot write {tmp_path / 'x.parquet'}: Permission denied"
