"""`daydream mcp`: the questions of the command line for coding agents, over stdio."""

from __future__ import annotations

import click

from daydream.cli.commands import command


@command()
def mcp(
    root: str = ".", *, allow_code: bool = False, skill: bool = False, skill_path: bool = False
) -> None:
    r"""Serve info, explain, rank, whatif, memory, plan, compare and confirm to an agent (MCP, stdio).

    \b
    daydream mcp --root runs                      # what an agent's settings start
    daydream mcp --skill > SKILL.md               # how to go from a trace to a merged change

    Answers are small and typed: the code of the change, the range of the prediction and what would
    falsify it. Only files below the root are read, links resolved, and no code is run: `confirm` and
    optimizations by path need --allow-code. A call that is cancelled ends its work.
    Needs the package mcp, of the extra `mcp`.

    Args:
        root (DIR): Only files below it may be read.
        allow_code: Let agents run scripts and changes by path below the root.
        skill: Print the SKILL.md for agents, and end.
        skill_path: Print where that file is, and end.
    """
    from daydream.agents.questions import SKILL, Root
    from daydream.errors import MissingPackageError

    if skill or skill_path:
        click.echo(SKILL if skill_path else SKILL.read_text(encoding="utf-8"), nl=skill_path)
        return
    folder = Root(root)
    try:
        from daydream.agents.server import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "anyio"}:
            raise
        raise MissingPackageError("mcp>=2", "mcp") from None
    run(folder, allow_code=allow_code)
