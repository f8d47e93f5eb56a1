"""`daydream sql`, `tool` and `mcp`: questions to the rows of a trace, which need no replay; those of an agent."""

from __future__ import annotations

from collections.abc import Iterator

import click

from daydream.cli.commands import command
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, usage_error, working


@command(
    click.Argument(["query"], required=False),
    "verbose",
    types={"most": click.IntRange(1, 10_000_000)},
)
def sql(
    request: TraceRequest,
    out: Output,
    query: str | None,
    *,
    schema: bool = False,
    most: int = 10_000,
) -> None:
    r"""Ask a trace in SQL: one SELECT over its events, kernels, operators, steps and memory.

    \b
    daydream sql "SELECT name, count(*) AS calls, sum(duration_ns) AS total_ns
      FROM kernels GROUP BY name ORDER BY total_ns DESC LIMIT 10" t.parquet
    daydream sql --schema

    TRACE is a parquet trace or anything `daydream import` accepts. Tables are read-only, and no
    other file is accessible. Times are in ns; unknown values are null. Needs the package duckdb, of the
    extra `sql`.

    Args:
        schema: Show the tables and their columns.
        most: Most rows to read of the answer.
    """
    from daydream.integrations.sql import query as ask
    from daydream.report.blocks import Block, Text
    from daydream.report.views.nouns import records

    if schema:
        _show_schema(out)
        return
    if query is None:
        raise usage_error("missing argument 'QUERY'; `daydream sql --schema` shows the tables")
    found = request.ask_rows("asking", lambda trace: ask(trace, query, most=most))

    def screen() -> Iterator[Block]:
        yield from records({"rows": found.records()}, verbose=out.verbose)
        if found.more:
            yield Text(f"There are more than {most:,} rows: --most asks for them.")

    out.emit(found, screen, trace=request.trace, query=query)


def _show_schema(out: Output) -> None:
    from daydream.integrations.sql import TABLES
    from daydream.report.blocks import Block, Facts, Title

    entries = [
        {
            "name": name,
            "meaning": table.meaning,
            "columns": [
                {"name": column, "type": kind, "meaning": meaning}
                for column, (kind, meaning) in table.columns.items()
            ],
        }
        for name, table in TABLES.items()
    ]
    blocks: list[Block] = []
    for name, table in TABLES.items():
        rows = []
        known = TABLES["events"].columns if table.query is not None else {}
        extra = [column for column in table.columns if column not in known]
        if known:
            rows = [("columns", "those of events" + (f", and {', '.join(extra)}" if extra else ""))]
        rows += [(column, ", ".join(table.columns[column])) for column in extra]
        blocks += [Title(f"{name}: {table.meaning}"), Facts(rows)]
    out.emit({"tables": entries}, lambda: blocks)


@command(click.Argument(["name"], required=False), "verbose")
def tool(
    request: TraceRequest,
    out: Output,
    name: str | None,
    *,
    range_: str | None = None,
    list_: bool = False,
) -> None:
    """Run a small analysis over the events of a trace.

    NAME is one of `daydream tool --list`, or the path of a Python file with a class under
    @daydream.tool. --range selects a part of the trace: layer:GLOB, step:NUMBER, annotation:REGEX
    or kernels:FIRST-LAST, with what is launched there, and its backward pass.

    Args:
        range_ (RANGE): The part of the trace that the tool sees.
        list_: List the tools.
    """
    from daydream.report.blocks import Facts
    from daydream.report.views.nouns import records
    from daydream.tools.run import find_tool, run_tool, tools

    if list_:
        known = tools()
        entries = [{"name": each, "summary": summary} for each, summary in known.items()]
        out.emit({"tools": entries}, lambda: [Facts(list(known.items()))])
        return
    if name is None:
        raise usage_error("missing argument 'NAME'; `daydream tool --list` shows the tools")
    _ = request.trace  # before a user's file is run
    with working():
        cls = find_tool(name)  # before the trace is read, which takes longer
    found = request.ask_rows(
        "running the tool",
        lambda trace: run_tool(
            cls,
            trace,
            range_,
        ),
    )
    out.emit(found, lambda: records(found, verbose=out.verbose))


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
