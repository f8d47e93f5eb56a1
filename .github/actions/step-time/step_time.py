"""Compare two traces, and put the result where a reviewer sees it: the job's summary and one comment.

The inputs of the action come as variables: BEFORE, AFTER, WHATIF, OPTIONS, FAIL_ABOVE_PERCENT, COMMENT.
Without GitHub's own variables it prints the Markdown and nothing else, so that it can be tried anywhere:

    BEFORE=before.parquet AFTER=after.parquet python step_time.py

Exit codes are those of daydream, and 3 where the step got longer than allowed.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MARK = "<!-- daydream: step time -->"  # by which the comment is found again
GATE = 3
LONGEST = 60_000  # characters; GitHub takes 65,536
PATIENCE_S = 30


def main() -> int:
    """Compare, show, and return the exit code."""
    limit = _limit(os.environ.get("FAIL_ABOVE_PERCENT", ""))
    if limit is not None and math.isnan(limit):
        print("error: fail-above-percent is not a number", file=sys.stderr)
        return 2
    command = _command()
    text = subprocess.run([*command, "--markdown"], check=False, stdout=subprocess.PIPE, encoding="utf-8")
    if text.returncode:
        return text.returncode
    figures = json.loads(
        subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    )
    before, after = _steps(figures)
    markdown = f"{MARK}\n### Step time\n\n{text.stdout}"[:LONGEST]
    above = limit is not None and (not before or after > before * (1 + limit / 100))
    if above:
        markdown += f"\n**Above the gate:** at most {limit:g} % longer is allowed.\n"
    print(markdown)
    file = Path(os.environ.get("RUNNER_TEMP") or tempfile.mkdtemp()) / "daydream-step-time.md"
    file.write_text(markdown, encoding="utf-8")
    _append("GITHUB_STEP_SUMMARY", markdown)
    _append("GITHUB_OUTPUT", f"speedup={before / after if after else ''}\nmarkdown={file}\n")
    if os.environ.get("COMMENT", "true").lower() == "true":
        _comment(markdown)
    return GATE if above else 0


def _command() -> list[str]:
    words = [sys.executable, "-m", "daydream", "compare", os.environ["BEFORE"], os.environ["AFTER"]]
    whatif = os.environ.get("WHATIF", "").strip()
    return [*words, "--whatif", whatif, *shlex.split(os.environ.get("OPTIONS", ""))] if whatif else words


def _limit(text: str) -> float | None:
    """Return the gate in percent, None if there is none, no number if it is none."""
    try:
        return float(text) if text.strip() else None
    except ValueError:
        return math.nan


def _steps(figures: dict[str, Any]) -> tuple[int, int]:
    """Return the measured steps before and after in ns: with a prediction, the one that it started from."""
    start = figures["started_from_ns"]
    return figures["before"]["step_ns"] if start is None else start, figures["after"]["step_ns"]


def _append(variable: str, text: str) -> None:
    """Append to a file of the runner, if there is one."""
    if os.environ.get(variable):
        with open(os.environ[variable], "a", encoding="utf-8") as file:
            file.write(text)


def _comment(markdown: str) -> None:
    """Write the comment, over the one of the last run; what GitHub refuses is said and fails nothing."""
    event = os.environ.get("GITHUB_EVENT_PATH")
    if not event:
        return
    about = json.loads(Path(event).read_text(encoding="utf-8"))
    number = (about.get("pull_request") or {}).get("number")
    if number is None:
        print("no comment: the event is of no pull request", file=sys.stderr)
        return
    issues = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    comments = f"{issues}/{number}/comments"
    try:
        old = _written_before(comments)
        if old is None:
            _ask("POST", comments, {"body": markdown})
        else:
            _ask("PATCH", f"{issues}/comments/{old}", {"body": markdown})
    except urllib.error.HTTPError as error:
        why = "of a pull request from a fork the token may only read" if error.code == 403 else error.reason
        print(f"no comment: GitHub answers {error.code} ({why}); the job's summary has it", file=sys.stderr)
    except OSError as error:
        print(f"no comment: {error}; the job's summary has it", file=sys.stderr)


def _written_before(comments: str) -> int | None:
    """Return the number of the comment that an earlier run wrote."""
    for page in range(1, 11):
        found = _ask("GET", f"{comments}?per_page=100&page={page}")
        for each in found:
            if str(each.get("body", "")).startswith(MARK):
                return int(each["id"])
        if len(found) < 100:
            break
    return None


def _ask(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ.get('GITHUB_TOKEN', '')}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    sys.exit(main())
