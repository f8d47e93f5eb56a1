"""Cases run in processes forked from one that has imported all of daydream, with limits of time and memory.

A case that is neither answered nor refused in one message is a failure: a traceback, an internal
error, a warning, an escape character, more than 10 s of CPU time, more than 2 GiB, a damaged output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz import counter_cases, kineto_cases, nsys_cases, option_cases, parquet_cases, vendor_cases
from fuzz.hostile import Case, Maker
from fuzz.smaller import smaller

MAKERS: dict[Maker, int] = {
    kineto_cases.tiny: 25, kineto_cases.damaged: 20, kineto_cases.encoded: 5, kineto_cases.ranks: 6,
    vendor_cases.rocprof: 8, vendor_cases.tables: 5, vendor_cases.xplane: 8, vendor_cases.rocpd: 4,
    counter_cases.tables: 8, counter_cases.texts: 6, counter_cases.objects: 2,
    nsys_cases.damaged: 12, parquet_cases.rows: 10, parquet_cases.types: 5, parquet_cases.metadata: 8, parquet_cases.memory: 6,
    parquet_cases.damaged: 3, option_cases.values: 10, option_cases.words: 3, option_cases.own_file: 6, option_cases.tables: 2,
}  # fmt: skip
RANK_SECONDS = 40  # fifty what-ifs
CPU_SECONDS, WALL_SECONDS = 10, 90  # of one case; other programs may slow it, so CPU time is what counts
LARGEST_BYTES = 2 << 30
IN_A_CHILD = 25  # cases; a new process each would take longer than most of them
FAILURES = {
    "Traceback (most": "traceback", "internal error": "internal error", "not enough memory": "memory",
    "RuntimeWarning:": "warning", "DeprecationWarning:": "warning",
}  # fmt: skip
CONTROL = ("\x1b", "\x00", "\x07")


def case_of(seed: int, number: int) -> Case:
    """Return a case: the same one for the same numbers."""
    chance = random.Random(f"{seed}/{number}")
    maker = chance.choices(list(MAKERS), list(MAKERS.values()))[0]
    return maker(chance)


def outcome(case: Case, folder: Path) -> tuple[str, str]:
    """Run a case in this process; return ("answered", "refused" or what went wrong; what was printed)."""
    import threading

    from daydream.cli import daydream
    from daydream.cli.errors import run

    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    os.chdir(folder)
    for name in [name for name in sys.modules if name.startswith("daydream_user_")]:
        del sys.modules[name]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = threading.active_count(), sys.stdout, sys.stderr
    printed, said = out.buffer, err.buffer
    sys.stdout, sys.stderr = out, err
    try:
        code: Any = run(daydream, case.args)
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {error}"
    finally:
        sys.stdout, sys.stderr = before[1:]
    text = [b"" if each.closed else each.getvalue() for each in (printed, said)]
    shown, told = (each.decode("utf-8", "backslashreplace") for each in text)
    return judged(case, code, shown, told), told + shown[-200:]


def judged(case: Case, code: int, shown: str, told: str) -> str:
    """Return what a command line ended in."""
    for word, what in FAILURES.items():
        if word in told:
            return what
    if any(mark in told + shown for mark in CONTROL):
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
            Trace.load("out.parquet")
        except Exception as error:
            return f"damaged output: {error}"
    return "refused" if code else "answered"


def _child(cases: list[tuple[int, Case | None]], seed: int, pipe: int) -> None:
    """Run cases and write a line about each: before it begins, and what it ended in."""
    os.setsid()
    limit = LARGEST_BYTES + _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for number, given in cases:
        _say(pipe, number=number)
        signal.setitimer(signal.ITIMER_PROF, 0)
        folder = Path(tempfile.mkdtemp(prefix="daydream-fuzz-", dir=base))
        try:
            case = case_of(seed, number) if given is None else given
            signal.setitimer(signal.ITIMER_PROF, RANK_SECONDS if "rank" in case.args else CPU_SECONDS)
            begin = time.process_time()
            what, said = outcome(case, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            used = time.process_time() - begin
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LARGEST_BYTES:
                what = "memory"
            _say(
                pipe, number=number, kind=case.kind, what=what, said=said[-800:], seconds=used, args=case.args
            )
        finally:
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)
    _say(pipe, done=True)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _say(pipe: int, **what: Any) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


def batch(cases: list[tuple[int, Case | None]], seed: int) -> list[dict[str, Any]]:
    """Run cases in children and return what each ended in; one that kills its child is told, the rest go on."""
    found: list[dict[str, Any]] = []
    while cases:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            with contextlib.suppress(BaseException):
                _child(cases, seed, writing)
            os._exit(0)
        os.close(writing)
        ended, status = _listen(reading, child)
        os.close(reading)
        begun = [each for each in ended if "what" not in each and "number" in each]
        done = [each for each in ended if "what" in each]
        found += done
        cases = cases[len(done) :]
        if cases and begun and not any("done" in each for each in ended):
            number, given = cases[0]
            case = case_of(seed, number) if given is None else given
            what = "hang" if status in (signal.SIGPROF, signal.SIGKILL) else f"signal {status}"
            found.append(
                {
                    "number": number,
                    "kind": case.kind,
                    "what": what,
                    "said": "",
                    "seconds": CPU_SECONDS,
                    "args": case.args,
                }
            )
            cases = cases[1:]
    return found


def _listen(reading: int, child: int) -> tuple[list[dict[str, Any]], int]:
    """Read a child's lines until it ends; end it where it says nothing for too long."""
    text = b""
    while True:
        ready, _, _ = select.select([reading], [], [], WALL_SECONDS)
        if not ready:
            os.kill(child, signal.SIGKILL)
            break
        more = os.read(reading, 1 << 16)
        if not more:
            break
        text += more
        if b'"done"' in more:
            break
    time.sleep(0)
    deadline = time.monotonic() + 2
    while True:  # threads that a user's file has left may keep it
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return [json.loads(line) for line in text.splitlines() if line.endswith(b"}")], os.WTERMSIG(
        status
    ) if os.WIFSIGNALED(status) else 0


def prepare() -> None:
    """Import everything, and make what cases are made from, in the parent."""
    import importlib
    import pkgutil

    import daydream

    for module in pkgutil.walk_packages(daydream.__path__, "daydream."):
        if not module.name.startswith(
            (
                "daydream.collect",
                "daydream.calibration",
                "daydream.trainers",
                "daydream.__main__",
                "daydream.dask",
            )
        ):
            importlib.import_module(module.name)
    import daydream.collect.importers.kineto.reader
    import daydream.collect.importers.nsys.reader
    import daydream.collect.importers.rocprof
    import daydream.collect.importers.xplane.reader

    option_cases.sound()


def main(words: list[str] | None = None) -> int:
    """Run the fuzzer from a command line; return its exit code."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--cases", type=int, default=20_000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    asked.add_argument("--first", type=int, default=0, help="number of the first case")
    asked.add_argument("--minimize", type=int, default=20, help="how many failures to make smaller")
    asked.add_argument("--keep", type=Path, help="folder for the smallest failing inputs")
    given = asked.parse_args(words)
    os.environ["DAYDREAM_CACHE"] = "off"  # not the user's own; tests/test_cache.py damages one
    prepare()
    begin, number = time.monotonic(), given.first
    kinds: dict[str, Counter[str]] = {}
    failures: dict[str, dict[str, Any]] = {}
    slowest: dict[str, Any] = {"seconds": 0.0}
    last = given.first + given.cases
    while number < last and time.monotonic() - begin < given.seconds:
        numbers = range(number, min(number + IN_A_CHILD, last))
        number = numbers.stop
        for each in batch([(one, None) for one in numbers], given.seed):
            what = each["what"] if each["what"] in ("answered", "refused") else "FAILED"
            kinds.setdefault(each["kind"], Counter())[what] += 1
            slowest = max(slowest, each, key=lambda one: one["seconds"])
            if what == "FAILED":
                mark = _mark(each)
                if mark not in failures:
                    print(
                        f"case {each['number']}: {mark}\n  daydream {' '.join(each['args'])[:300]!a}",
                        flush=True,
                    )
                first = failures.setdefault(mark, each)
                first["times"] = first.get("times", 0) + 1
    return _report(kinds, failures, slowest, time.monotonic() - begin, given)


def _mark(each: dict[str, Any]) -> str:
    """Return what tells two failures apart."""
    lines = [line for line in each["said"].splitlines() if "internal error" in line or "Warning" in line]
    return (
        f"{each['what']}: {(lines or [each['said'][:120] or ' '.join(each['args'][:2])])[-1].strip()[:200]!a}"
    )


def _report(
    kinds: dict[str, Counter[str]],
    failures: dict[str, Any],
    slowest: dict[str, Any],
    seconds: float,
    given: Any,
) -> int:
    print(f"{'kind':18}{'cases':>9}{'answered':>10}{'refused':>9}{'failed':>8}")
    total: Counter[str] = Counter()
    for kind, counts in sorted(kinds.items()):
        total += counts
        print(
            f"{kind:18}{counts.total():9,}{counts['answered']:10,}{counts['refused']:9,}{counts['FAILED']:8,}"
        )
    print(f"{'all':18}{total.total():9,}{total['answered']:10,}{total['refused']:9,}{total['FAILED']:8,}")
    print(
        f"seed {given.seed}, {seconds:,.0f} s; the slowest took {slowest['seconds']:.1f} s of CPU (case {slowest.get('number')})"
    )
    for place, (mark, each) in enumerate(failures.items()):
        print(
            f"\n{each['times']} x {mark}\n  case {each['number']}: daydream {' '.join(each['args'])[:300]!a}"
        )
        if place < given.minimize:
            case = smaller(case_of(given.seed, each["number"]), lambda one, mark=mark: _fails_so(one, mark))
            print(f"  smallest: {case.args!a}")
            for name, content in case.files.items():
                print(f"    {name!a} ({len(content)} bytes): {content[:600]!r}")
                if given.keep is not None:
                    given.keep.mkdir(exist_ok=True, parents=True)
                    (given.keep / f"{each['number']}-{Path(name).name}").write_bytes(content)
    return 1 if failures else 0


def _fails_so(case: Case, mark: str) -> bool:
    (each,) = batch([(0, case)], 0)
    return _mark(each) == mark
