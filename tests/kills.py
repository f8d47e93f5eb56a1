"""Kill commands at any moment, and let some race; print the counts. From the root of the repository:

    python -m tests.kills --kills 500 --rounds 1000

Exit code 1 if a file was damaged, something was left behind, or not exactly one writer succeeded.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pytest has this folder on its path

from killed.killing import kill_many, load, race
from machine.programs import PROGRAMS


def main():
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["DAYDREAM_CACHE"] = "off"  # not the user's own
    load()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        return run(asked.kills, asked.rounds, asked.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(kills, rounds, seed, folder):
    """Return the exit code of so many kills and rounds."""
    wrong = 0
    for name in ("killed", "raced"):
        (folder / name).mkdir()
        PROGRAMS["synchronizing"]().run(steps=30).write(folder / name / "step.json.gz", 24, 27)
    if kills:
        torch = importlib.util.find_spec("torch") is not None
        counts = kill_many(kills, folder / "killed", say, seed=seed, torch=torch)
        say(*counts.lines())
        wrong += len(counts.damaged) + len(counts.left)
    if rounds:
        (folder / "raced" / "tmp").mkdir()
        failed = race(rounds, folder / "raced")
        say(*failed, f"{rounds} rounds of three writers: exactly one succeeded in {rounds - len(failed)}")
        wrong += len(failed)
    return int(wrong > 0)


def say(*lines):
    """Print lines at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


sys.exit(main())
