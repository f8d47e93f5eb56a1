"""Several writers of one file at once, without `--force`: exactly one succeeds."""

import os

from killed.forked_commands import end, names, start

WRITERS = 3
REFUSED = 1


def race(rounds, folder):
    """Let three imports write one file, so many times, and return what was wrong."""
    arguments = ("import", "step.json.gz", "-o", "won.parquet")
    target, wrong = folder / "won.parquet", []
    if end(start(arguments, folder)):
        raise RuntimeError(f"import fails: {(folder / 'said').read_text()}")
    expected = target.read_bytes()
    before = names(folder)
    for number in range(rounds):
        target.unlink()
        reading, writing = os.pipe()

        def wait(reading=reading, writing=writing):
            os.close(writing)
            os.read(reading, 1)  # all begin when the pipe is closed

        writers = [start(arguments, folder, wait) for _ in range(WRITERS)]
        os.close(reading)
        os.close(writing)
        codes = sorted(end(each) for each in writers)
        if codes != [0, *[REFUSED] * (WRITERS - 1)]:
            wrong.append(f"round {number}: exit codes {codes}")
        if target.read_bytes() != expected:
            wrong.append(f"round {number}: another file")
        if names(folder) != before or names(folder / "tmp"):
            wrong.append(f"round {number}: something was left behind")
    return wrong
