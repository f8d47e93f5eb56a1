"""Debug handles: from compiled, fused and replayed code back to operators, layers and phases.

The map itself and its joins to a trace are in `daydream.trace` (`handle_map`, `attach`); here is how maps
are made. What reads files into traces, and what records, stands above it in `daydream.collect`.
"""

from daydream.handles.builder import DebugHandleMapBuilder
from daydream.trace.handle_map import DebugHandleMap, Handle

__all__ = ["DebugHandleMap", "DebugHandleMapBuilder", "Handle"]
