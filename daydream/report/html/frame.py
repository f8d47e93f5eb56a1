"""The timelines before and after a change for a notebook: the report's, smaller, in a frame of their own.

In the frame the page's program runs by itself: it loads nothing, and reaches neither the notebook nor
its server. No widgets are needed, and the figure stays in a saved notebook.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daydream.errors import GraphError
from daydream.report.blocks import Drawing
from daydream.report.html.render import page_of
from daydream.report.html.timelines import timelines

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction

MOST_SPANS = 2_000  # of one timeline: more than a cell is wide in pixels
LANE, HEAD, AROUND, HIGHEST = (
    38,
    90,
    130,
    390,
)  # pixels: a lane, above a chart, around both; a chart


@dataclass(frozen=True)
class TimelineFrame:
    """Both timelines of a what-if, for a notebook to show."""

    html: str = field(repr=False)
    optimization: str

    def _repr_html_(self) -> str:
        return self.html


def timeline_frame(comparison: Prediction, most: int = MOST_SPANS) -> TimelineFrame:
    """Return the timelines of a what-if as an element of HTML, which holds all that it needs.

    Args:
        comparison: the what-if.
        most: spans of each timeline; of more, short neighbours are drawn as one.

    Raises:
        GraphError: the step after the change cannot be predicted.

    """
    if comparison.reason is not None:
        raise GraphError(
            f"{comparison.optimization} cannot be predicted from this trace, because {comparison.reason}: "
            "there is no timeline after it"
        )
    drawn = timelines(comparison.replay, comparison, most)
    height = AROUND + sum(
        min(HEAD + LANE * len(each["lanes"]), HIGHEST) for each in drawn["timelines"]
    )
    page = page_of("timelines", [Drawing("timelines", drawn)], frame=True)
    text = page.replace("&", "&amp;").replace('"', "&quot;")
    frame = (
        f'<iframe sandbox="allow-scripts" title="timelines before and after" srcdoc="{text}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )
    return TimelineFrame(frame, comparison.optimization)
