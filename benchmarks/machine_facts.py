"""What the machine is, in general terms: no names of hosts, no paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("numpy", "pyarrow", "msgspec", "click", "networkx")
VECTOR_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}


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
    sys.stdout.write("".join(f"{name}: {value}\n" for name, value in machine().items()))
