"""Why a step takes its time: the critical path as causes, what bounds it, and what could be avoided.

explain(source)     an `Explanation`: shares of the step, waits beside it, avoidable costs
"""

from daydream.explanation.asking import WhatIfResult
from daydream.explanation.avoidable import Avoidable
from daydream.explanation.causes import Part, Share
from daydream.explanation.result import Explanation, explain

__all__ = ["Avoidable", "Explanation", "Part", "Share", "WhatIfResult", "explain"]
