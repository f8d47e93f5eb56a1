"""A tiny exact machine that training programs run on: the truth predictions are tested against."""

from .engine import Blocked, Costs, Machine, Program, Row, Run
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
    read_word,
    record,
    sleep,
    stream_sync,
    take,
    turn,
    wait,
)

__all__ = [
    "Blocked", "Costs", "Machine", "Program", "Row", "Run", "annotation", "backward", "cpu", "device_sync",
    "event_sync", "free", "graph_launch", "launch", "memcpy", "memset", "op", "put", "python", "query",
    "read_word", "record", "sleep", "stream_sync", "take", "turn", "wait",
]  # fmt: skip
