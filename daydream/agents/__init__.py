"""The questions of the command line for coding agents: an MCP server, its answers, a guide to both."""

from pathlib import Path

SKILL = Path(__file__).with_name("SKILL.md")  # how to go from a trace to a merged change
