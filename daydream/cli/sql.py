"""`daydream sql`: SQL over a trace."""

from __future__ import annotations

import click

from daydream.cli.source import (
    ask_rows,
    cache_option,
    json_option,
    step_options,
    trace_option,
    verbose_option,
)

MOST_ROWS = 10_000


def _sql(
    query: str | None,
    trace: str | None,
    schema: bool,
    most: int,
    step_marker: str | None,
    steps: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    r"""Ask a trace in SQL: one SELECT over its events, kernels, operators, steps and memory.

    \b
    daydream sql --trace t.parquet "SELECT name, count(*) AS calls, sum(duration_ns) AS total_ns
      FROM kernels GROUP BY name ORDER BY total_ns DESC LIMIT 10"
    daydream sql --schema

    TRACE is a parquet trace or anything `daydream import` accepts. The tables are read only, and no
    other file is reached. Times are in ns, what is not known is null. Needs the package duckdb:
    pip install 'daydream[sql]'.
    """
    from daydream.cli.output import print_json, print_screen
    from daydream.integrations.sql import query as ask
    from daydream.report.blocks import Text
    from daydream.report.views.records import records

    if schema:
        _show_schema(as_json=as_json)
        return
    if query is None:
        lacks = "missing argument 'QUERY'; `daydream sql --schema` shows the tables"
        raise click.UsageError(lacks, click.get_current_context())
    found = ask_rows(trace, step_marker, steps, "asking", lambda recording: ask(recording, query, most=most))
    if as_json:
        print_json({"trace": trace, "query": query, **found.to_json()})
        return
    rows = records({"rows": found.records()}, verbose=verbose)
    more = [Text(f"There are more than {most:,} rows: --most asks for them.")] if found.more else []
    print_screen([*rows, *more])


def _show_schema(*, as_json: bool) -> None:
    from daydream.cli.output import print_json, print_screen
    from daydream.integrations.sql_tables import TABLES
    from daydream.report.blocks import Block, Facts, Title

    if as_json:
        print_json({
            "tables": [
                {"name": name, "meaning": table.meaning, "columns": [
                    {"name": column, "type": kind, "meaning": meaning}
                    for column, (kind, meaning) in table.columns.items()
                ]}
                for name, table in TABLES.items()
            ]
        })  # fmt: skip
        return
    blocks: list[Block] = []
    for name, table in TABLES.items():
        blocks.append(Title(f"{name}: {table.meaning}"))
        if table.query is not None:
            extra = [column for column in table.columns if column not in TABLES["events"].columns]
            columns = [("columns", "those of events" + (f", and {', '.join(extra)}" if extra else ""))]
            columns += [
                (column, f"{table.columns[column][0]}, {table.columns[column][1]}") for column in extra
            ]
        else:
            columns = [(column, f"{kind}, {meaning}") for column, (kind, meaning) in table.columns.items()]
        blocks.append(Facts(columns))
    print_screen(blocks)


command = click.Command(
    "sql",
    callback=_sql,
    help=(_sql.__doc__ or "").replace("\\b", "\b"),
    short_help="Ask a trace in SQL.",
    params=[
        click.Argument(["query"], required=False),
        trace_option(),
        click.Option(["--schema"], is_flag=True, help="Show the tables and their columns."),
        click.Option(
            ["--most"], type=click.IntRange(1, 10_000_000), default=MOST_ROWS, show_default=True, metavar="N",
            help="How many rows to read of the answer.",
        ),
        *step_options(),
        cache_option(),
        verbose_option("every row"),
        json_option(),
    ],
)  # fmt: skip
