"""The colours of what a step waits for: in the bars of its causes, and of the tasks in a timeline."""

from __future__ import annotations

from collections.abc import Collection

from daydream.report.html.elements import Html, element
from daydream.simulate.critical_path import Bound, PathCause

OF_CAUSES = tuple(dict.fromkeys(cause.bound for cause in PathCause))
OF_LABELS = {cause.label: cause.bound for cause in PathCause}


def variable(bound: Bound) -> str:
    """Return the name of a colour in the page's style."""
    return f"--bound-{bound.value.lower()}"


def variable_of(label: str) -> str:
    """Return that of a cause by its label; an empty text for what is no cause, such as a sum."""
    return variable(OF_LABELS[label]) if label in OF_LABELS else ""


def style() -> str:
    """Return the colours as the page's style defines them, on light and on dark."""
    light = " ".join(f"{variable(bound)}: {bound.light};" for bound in OF_CAUSES)
    dark = " ".join(f"{variable(bound)}: {bound.dark};" for bound in OF_CAUSES)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def legend(labels: Collection[str]) -> Html:
    """Return what the colours of these causes mean; nothing if none of them is a cause."""
    used = {OF_LABELS[label] for label in labels if label in OF_LABELS}
    parts = [
        element("span", element("i", "", style=f"background: var({variable(bound)})"), bound.awaited)
        for bound in OF_CAUSES
        if bound in used
    ]
    return element("div", element("span", "the step waits for"), *parts, class_="legend") if parts else Html()
