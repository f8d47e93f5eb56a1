"""A real client of `daydream mcp`, over stdio, as coding agents start it."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager


@asynccontextmanager
async def client(root, *options):
    """Connect to a server in a process of its own, which answers below `root`."""
    from mcp import Client, StdioServerParameters, stdio_client

    words = ["-m", "daydream", "mcp", "--root", str(root), *options]
    # The client hands on few variables by itself; all are wanted here, that of the cache among them.
    started = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(stdio_client(started)) as connected:
        yield connected


async def answer(connected, tool, **arguments):
    """Return a tool's answer, a dictionary."""
    result = await connected.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    return result.structured_content


async def refusal(connected, tool, **arguments):
    """Return what a tool says when it refuses."""
    result = await connected.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return result.content[0].text
