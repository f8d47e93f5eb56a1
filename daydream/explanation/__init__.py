"""Why a step takes its time: the critical path as causes, what bounds it, and what could be avoided.

explain(source)     an `Explanation`: shares of the step, waits beside it, avoidable costs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy

if TYPE_CHECKING:
    from daydream.explanation.asking import WhatIfResult
    from daydream.explanation.avoidable import Avoidable
    from daydream.explanation.causes import Part, Share
    from daydream.explanation.result import Explanation, explain

_HOMES = {
    "daydream.explanation.asking": ("WhatIfResult",),
    "daydream.explanation.avoidable": ("Avoidable",),
    "daydream.explanation.causes": ("Part", "Share"),
    "daydream.explanation.result": ("Explanation", "explain"),
}

__all__ = ["Avoidable", "Explanation", "Part", "Share", "WhatIfResult", "explain"]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
