"""A tiny exact machine that training programs run on: the truth predictions are tested against."""

from .engine import Costs, Machine, Program, Row, Run
from .instructions import (
    annotation,
    backward,
    cpu,
    device_sync,
    event_sync,
    free,
    graph_launch,
    launch,
    memcpy,
    memset,
    op,
    put,
    python,
    query,
    record,
    sleep,
    stream_sync,
    take,
    wait,
)

__all__ = [
    "Costs", "Machine", "Program", "Row", "Run", "annotation", "backward", "cpu", "device_sync", "event_sync",
    "free", "graph_launch", "launch", "memcpy", "memset", "op", "put", "python", "query", "record", "sleep",
    "stream_sync", "take", "wait",
]  # fmt: skip
