"""A comparison as Markdown, for a pull request: before, predicted and after, and what changed most.

Names come from traces, whoever wrote them: they stand between backticks, where a page takes them for
neither markup nor people nor issues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.lazy import regex
from daydream.report.text.difference import columns_of, side_text, step_remarks
from daydream.report.text.layout import printable, shortened
from daydream.report.text.numbers import percent, range_text, time_text

if TYPE_CHECKING:
    from daydream.predict.compare import Change, Difference, Side

MOST_CHANGES = 5
NAME_WIDTH = 60
MARKUP = regex(r"([\\`*_\[\]()|~$])")  # what GitHub's Markdown takes for its own in a sentence
UNKNOWN = "unknown"


def comparison_markdown(difference: Difference) -> str:
    """Return a comparison as Markdown: a line that says it, a table, then what changed most and the notes."""
    one, two = difference.before, difference.after
    blocks = [f"**{_verdict(difference)}**", _table(_steps(difference))]
    blocks += [sentence(line) for line in step_remarks(difference)]
    changes = [each for each in difference.layers if each.change_ns][:MOST_CHANGES]
    if len(changes) < 2:  # no layers are known
        changes = [each for each in difference.operators if each.change_ns][:MOST_CHANGES]
    inside = [_table(_changes(changes, columns_of(difference)))] if changes else []
    inside.append("\n".join(f"- {sentence(side_text(each))}" for each in (one, two)))
    notes = list(dict.fromkeys(difference.notes))
    if notes:
        inside += ["Notes:", "\n".join(f"- {sentence(note)}" for note in notes)]
    details = "\n\n".join(inside)
    blocks.append(f"<details><summary>Where it comes from</summary>\n\n{details}\n\n</details>")
    return "\n\n".join(blocks) + "\n"


def _verdict(difference: Difference) -> str:
    one, two, start = difference.before, difference.after, difference.started_from_ns
    before = one.simulated_ns if start is None else start
    change = _against(before, two.simulated_ns)
    line = f"Step time {time_text(before)} → {time_text(two.simulated_ns)}: {change}"
    if one.prediction:
        if one.reason or difference.error is None:
            return f"{line}; {sentence(one.prediction)} could not be predicted"
        came = "as predicted" if difference.overlap else "not as predicted"
        return f"{line}, {came} (error {percent(difference.error, signed=True)})"
    return line if not difference.overlap else f"{line}; the step times overlap, so this may be noise"


def _steps(difference: Difference) -> list[list[str]]:
    one, two, start = difference.before, difference.after, difference.started_from_ns
    rows = [["", "step", "range", "against before"]]
    if not one.prediction:
        rows.append(["before", time_text(one.simulated_ns), _range(one), ""])
    else:
        rows.append(["before", UNKNOWN if start is None else time_text(start), "", ""])
        step = UNKNOWN if one.reason else time_text(one.simulated_ns)
        change = "" if one.reason or start is None else _against(start, one.simulated_ns)
        rows.append([f"predicted: {code(one.prediction)}", step, _range(one), change])
    before = one.simulated_ns if start is None else start
    rows.append(["after", time_text(two.simulated_ns), _range(two), _against(before, two.simulated_ns)])
    return rows


def _range(side: Side) -> str:
    if side.low_ns is None or side.high_ns is None or side.low_ns == side.high_ns:
        return ""
    return range_text(side.low_ns, side.high_ns)


def _against(before_ns: int, after_ns: int) -> str:
    """Return how much shorter or longer a step got: `47 % less (1.88x)`."""
    if not before_ns or not after_ns:
        return UNKNOWN
    if before_ns == after_ns:
        return "no change"
    share = abs(after_ns / before_ns - 1)
    return f"{percent(share)} {'less' if after_ns < before_ns else 'more'} ({before_ns / after_ns:.2f}x)"


def _changes(changes: Sequence[Change], names: Sequence[str]) -> list[list[str]]:
    rows = [["largest changes of a step's work", *names, "change"]]
    for each in changes:
        name = each.layer or each.operator or next(iter((*each.after, *each.before)), "?")
        sign = "+" if each.change_ns > 0 else "-"
        change = f"{sign}{time_text(abs(each.change_ns))}"
        rows.append([code(name), time_text(each.before_ns), time_text(each.after_ns), change])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [head, ["---", *("---:" for _ in head[1:])], *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(name: str) -> str:
    """Return a name from a trace as it stands between backticks, also in a table."""
    plain = shortened(printable(" ".join(name.split())), NAME_WIDTH)
    return f"`{plain.replace('`', chr(39)).replace('|', '/')}`" if plain.strip() else "` `"


def sentence(text: str) -> str:
    """Return a sentence with names from a trace in it as text: no markup, nobody and no issue mentioned."""
    plain = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return MARKUP.sub(r"\\\1", plain).replace("@", "&#64;").replace("#", "&#35;").replace("://", ":&#47;/")
