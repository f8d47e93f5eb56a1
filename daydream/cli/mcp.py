"""`daydream mcp`: the questions of the command line for coding agents, over stdio."""

from __future__ import annotations

import click

MISSING = (
    "the package `mcp` is not installed, or older than version 2.\n"
    "Install it with: pip install 'daydream[mcp]'"
)


def _mcp(root: str, allow_code: bool, show_skill: bool, skill_path: bool) -> None:
    r"""Serve info, explain, rank, whatif, memory, compare and confirm to a coding agent (MCP, stdio).

    \b
    daydream mcp --root runs                      # what an agent's settings start
    daydream mcp --skill > SKILL.md               # how to go from a trace to a merged change

    Answers are small and typed: the code of the change, the range of the prediction and what would
    falsify it. Only files below the root are read, links resolved, and no code is run: `confirm` and
    optimizations by path need --allow-code. A call that is cancelled ends its work.
    Needs the package mcp: pip install 'daydream[mcp]'.
    """
    from daydream.agents.skill import skill
    from daydream.agents.skill import skill_path as where
    from daydream.errors import DaydreamError

    if show_skill or skill_path:
        click.echo(str(where()) if skill_path else skill(), nl=skill_path)
        return
    from daydream.agents.root import Root

    folder = Root(root)
    try:
        from daydream.agents.server import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "anyio"}:
            raise
        raise DaydreamError(MISSING) from None
    run(folder, allow_code=allow_code)


command = click.Command(
    "mcp",
    callback=_mcp,
    help=(_mcp.__doc__ or "").replace("\\b", "\b"),
    short_help="Serve the same questions to a coding agent.",
    params=[
        click.Option(
            ["--root"], default=".", metavar="DIR",
            help="The folder whose files may be read, and nothing else; by default the current one.",
        ),
        click.Option(
            ["--allow-code"], is_flag=True,
            help="Let the agent run training scripts and optimizations by path below the root.",
        ),
        click.Option(["--skill", "show_skill"], is_flag=True, help="Print the SKILL.md for agents, and end."),
        click.Option(["--skill-path"], is_flag=True, help="Print where that file lies, and end."),
    ],
)  # fmt: skip
