"""Run every benchmark, write docs/evaluation/speed_*.csv, print JSON on stdout.

Compare ratios, not seconds: what is compared takes turns in one run, so both sides see the same machine,
however busy it is. Every table has an A/A control, the same thing timed twice; one further than `CONTROL_OFF`
from 1 is marked "off", and ratios beside it are no better than that.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hta_environment import MissingError, hta_python, versions
from results import Part, aims_table, grid, markdown, options, read, say
from traces import REPOSITORY
from workers import HERE

sys.path.insert(0, str(REPOSITORY / "validation"))
from tables import keep

LIBRARIES = ("numpy", "pyarrow", "msgspec", "click", "networkx")
VECTOR_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
PARTS = ("importing", "graphs", "engines", "many_ranks", "sweep", "memory", "startup", "growth")


def main() -> None:
    """Run what was asked for."""
    parser = options(__doc__ or "")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given again")
    parser.add_argument(
        "-o", "--output", type=Path, help="the folder of CSV files (docs/evaluation, if all run)"
    )
    parser.add_argument("--keep", type=Path, help="a folder that keeps each part's result, to be used again")
    chosen = parser.parse_args()
    os.environ["DAYDREAM_CACHE"] = "off"  # each process is the first that asks about its trace
    output = chosen.output or (None if chosen.only or chosen.quick else REPOSITORY / "docs" / "evaluation")
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="daydream-benchmark-") as scratch:
        cache = chosen.cache or Path(scratch)
        try:
            with hta_python(cache) as python:
                names = [f"{name} {number}" for name, number in versions(python).items()]
                facts["HTA's environment"] = ", ".join(names)
        except MissingError as reason:
            facts["HTA's environment"] = str(reason)
        parts = [_part(name, cache, chosen.keep, quick=chosen.quick) for name in chosen.only or PARTS]
    failed = any(part.failed for part in parts)
    folder = None if failed else output
    with contextlib.redirect_stdout(sys.stderr):  # the tables, where they go into no file
        keep(folder, "speed machine", grid(["", ""], [[name, value] for name, value in facts.items()]))
        keep(folder, "speed aims", aims_table(parts))
        for part in parts:
            keep(folder, f"speed {part.title.lower().replace(' and ', ' ').replace('-', '')}", markdown(part))
    json.dump(
        {"schema": 1, "machine": facts, "parts": [asdict(part) for part in parts]}, sys.stdout, indent=1
    )
    sys.stdout.write("\n")
    sys.exit(1 if failed else 0)


def _part(name: str, cache: Path, kept: Path | None, *, quick: bool) -> Part:
    """Return a part's result, from an earlier run of the same kind where it was kept."""
    if kept is None:
        return _run(name, cache, quick=quick)
    file = kept / f"{name}{'-quick' if quick else ''}.json"
    if file.exists():
        say(f"{name}: kept from before")
        return read(file.read_text())
    part = _run(name, cache, quick=quick)
    if not part.failed:
        kept.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(part)))
    return part


def _run(name: str, cache: Path, *, quick: bool) -> Part:
    """Run one part in a process of its own: no part sees the memory or the modules of another."""
    say(f"{name}:")
    command = [
        sys.executable,
        str(HERE / f"{name}.py"),
        "--cache",
        str(cache),
        *(["--quick"] if quick else []),
    ]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return Part(name, "", failed=True, left_out=[f"all of it: it ended with code {done.returncode}"])
    return read(done.stdout)


def machine() -> dict[str, str]:
    """Return cores, CPU family, memory, system, versions, and the load as the run begins."""
    facts = {
        "CPU": f"{cpu_family()}, {os.cpu_count()} cores",
        "memory": f"{round(memory_bytes() / 2**30)} GiB",
        "system": f"{platform.system()}, {platform.machine()}",
        "Python": platform.python_version(),
        **{name: installed(name) for name in LIBRARIES},
        "C++": compiler(),
    }
    if hasattr(os, "getloadavg"):
        facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    return facts


def cpu_family() -> str:
    """Return the CPU's family and its widest vector instructions."""
    try:
        said = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    model = re.search(r"model name\s*:\s*(.*)", said)
    name = re.sub(r"\(R\)|\(TM\)|CPU|Processor|@.*", "", model.group(1)) if model else "unknown"
    vector = next((word for flag, word in VECTOR_SETS.items() if re.search(rf"\b{flag}\b", said)), "")
    return " ".join([*name.split(), *([f"with {vector}"] if vector else [])])


def memory_bytes() -> int:
    """Return the machine's memory, 0 if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def installed(name: str) -> str:
    """Return a library's version, or that it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def compiler() -> str:
    """Return the C++ compiler's version."""
    try:
        said = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return f"g++ {said.strip()}"


if __name__ == "__main__":
    main()
