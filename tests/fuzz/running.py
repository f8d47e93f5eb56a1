"""Cases run in processes forked from one that has imported all of daydream, with limits of time and memory.

A case that is neither answered nor refused in one message is a failure: a traceback, an internal
error, a warning, an escape character, more than 10 s of CPU time, more than 2 GiB, a damaged output.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from fuzz.cases import case_of, exports, public, sound

RANK_SECONDS = 40  # fifty what-ifs
CPU_SECONDS, WALL_SECONDS = 10, 90  # of one case; other programs may slow it, so CPU time is what counts
LARGEST_BYTES = 2 << 30
IN_A_CHILD = 25  # cases; a new process each would take longer than most of them
FAILURES = {
    "Traceback (most": "traceback", "internal error": "internal error", "not enough memory": "memory",
    "RuntimeWarning:": "warning", "DeprecationWarning:": "warning",
}  # fmt: skip
# What needs torch, or runs when imported.
APART = ("collect", "calibration", "trainers", "world", "__main__", "dask")
READERS = "kineto.reader", "nsys", "rocprof", "xplane"


def outcome(case, folder):
    """Run a case in this process; return ("answered", "refused" or what went wrong; what was printed)."""
    from daydream.cli import daydream, run

    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    os.chdir(folder)
    for name in [name for name in sys.modules if name.startswith("daydream_user_")]:
        del sys.modules[name]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = sys.stdout, sys.stderr
    printed, told = out.buffer, err.buffer
    sys.stdout, sys.stderr = out, err
    try:
        code = run(daydream, case.args)
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {error}"
    finally:
        sys.stdout, sys.stderr = before
    texts = [b"" if each.closed else each.getvalue() for each in (printed, told)]
    shown, errors = (each.decode("utf-8", "backslashreplace") for each in texts)
    return judged(case, code, shown, errors), errors + shown[-200:]


def judged(case, code, shown, told):
    """Return what a command line ended in."""
    for word, what in FAILURES.items():
        if word in told:
            return what
    if any(mark in told + shown for mark in "\x1b\x00\x07"):
        return "escape character"
    if code not in (0, 1, 2) and not (code == 130 and "KeyboardInterrupt" in str(case.files.get("mine.py"))):
        return f"exit {code}"
    if code and told.count("error:") != 1 and "Usage:" not in told + shown:
        return "no message"
    if not code and "--json" in case.args and "--help" not in case.args and shown.strip():
        try:
            json.loads(shown)
        except ValueError:
            return "no JSON"
    if code == 0 and Path("out.parquet").is_file():
        from daydream.trace.trace import Trace

        try:
            trace = Trace.load("out.parquet")
            if not case.kind.startswith("parquet"):  # our own file keeps its rows, which may be none
                promised(trace)
        except Exception as error:
            return f"damaged output: {error}"
    return "refused" if code else "answered"


def promised(trace):
    """Check what every importer promises, whatever the file was like."""
    start, duration, parent = (
        np.asarray(trace[name], np.int64) for name in ("start_ns", "duration_ns", "parent")
    )
    assert len(trace)
    assert start.min() >= 0
    assert duration.min() >= 0
    assert all(trace[name].max() < len(trace.text(name)) for name in trace.texts)
    assert (np.asarray(trace["step"]) < len(trace.metadata["steps"])).all()
    host = trace.is_kind("operator", "annotation", "runtime") & (parent >= 0)
    inner, outer = np.flatnonzero(host), parent[host]
    assert (start[inner] >= start[outer]).all()
    assert ((start + duration)[inner] <= (start + duration)[outer]).all()
    assert (trace["tid"][inner] == trace["tid"][outer]).all()


def _child(numbers, seed, lines):
    """Run cases and write a line about each: what it ended in."""
    limit = LARGEST_BYTES + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for number in numbers:
        folder = Path(tempfile.mkdtemp(prefix="daydream-fuzz-", dir=base))
        try:
            case = case_of(seed, number)
            signal.setitimer(signal.ITIMER_PROF, RANK_SECONDS if "rank" in case.args else CPU_SECONDS)
            signal.alarm(WALL_SECONDS)
            begin = time.process_time()
            what, said = outcome(case, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            used = time.process_time() - begin
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LARGEST_BYTES:
                what = "memory"
            lines.write(json.dumps([number, what, said[-800:], used]).encode() + b"\n")
            lines.flush()
        finally:
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)


def batch(numbers, seed):
    """Run cases in children: return number, outcome, output and seconds; one may kill its child, the rest go on."""
    found = []
    while numbers:
        with tempfile.TemporaryFile() as lines:
            child = os.fork()
            if not child:
                with contextlib.suppress(BaseException):
                    _child(numbers, seed, lines)
                os._exit(0)  # threads that a user's file has left may go on
            _, status = os.waitpid(child, 0)
            lines.seek(0)
            done = [tuple(json.loads(line)) for line in lines if line.endswith(b"\n")]
        found += done
        numbers = numbers[len(done) :]
        if numbers:
            by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            what = "hang" if by in (signal.SIGPROF, signal.SIGALRM) else f"signal {by}"
            found.append((numbers[0], what, "", CPU_SECONDS))
            numbers = numbers[1:]
    return found


def prepare():
    """Import everything, and make what cases are made from, in the parent."""
    import daydream

    for module in pkgutil.walk_packages(daydream.__path__, "daydream."):
        if not module.name.startswith(tuple(f"daydream.{name}" for name in APART)):
            importlib.import_module(module.name)
    for name in READERS:
        importlib.import_module(f"daydream.collect.importers.{name}")
    for made in (sound, exports, public):
        made()
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"


def main(words=None):
    """Run the fuzzer from a command line; return its exit code."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--cases", type=int, default=20_000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    asked.add_argument("--first", type=int, default=0, help="number of the first case")
    asked.add_argument("--keep", type=Path, help="folder for the files of cases that failed")
    given = asked.parse_args(words)
    os.environ["DAYDREAM_CACHE"] = "off"  # not the user's own; tests/test_cache.py damages one
    prepare()
    begin, number, last = time.monotonic(), given.first, given.first + given.cases
    ended, failures, slowest = Counter(), Counter(), (0.0, 0)
    while number < last and time.monotonic() - begin < given.seconds:
        numbers = range(number, min(number + IN_A_CHILD, last))
        number = numbers.stop
        for at, what, said, seconds in batch(numbers, given.seed):
            case, fine = case_of(given.seed, at), what in ("answered", "refused")
            slowest = max(slowest, (seconds, at))
            ended[case.kind, what if fine else "failed"] += 1
            if fine:
                continue
            telling = [line for line in said.splitlines() if "internal error" in line or "Warning" in line]
            mark = f"{what}: {(telling or [said[:120] or ' '.join(case.args[:2])])[-1].strip()[:200]!a}"
            failures[mark] += 1
            if failures[mark] == 1:  # the first of its sort
                print(f"case {at}: {mark}\n  daydream {' '.join(case.args)[:300]!a}", flush=True)
                for name, content in case.files.items() if given.keep else ():
                    given.keep.mkdir(exist_ok=True, parents=True)
                    (given.keep / f"{at}-{Path(name).name}").write_bytes(content)
    print(*(f"{count:6,} {kind}: {what}" for (kind, what), count in sorted(ended.items())), sep="\n")
    print(
        f"seed {given.seed}, {time.monotonic() - begin:,.0f} s; the slowest took {slowest[0]:.1f} s of CPU",
        end=" ",
    )
    print(f"(case {slowest[1]})", *(f"{times} x {mark}" for mark, times in failures.items()), sep="\n")
    return int(bool(failures))
