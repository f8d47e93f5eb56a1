"""The questions of the command line for coding agents: an MCP server, its answers, a guide to both."""
