"""`daydream tool`: small analyses over the events of a trace."""

from __future__ import annotations

import click

from daydream.cli.source import (
    ask_rows,
    cache_option,
    json_option,
    need_trace,
    stdout_for_the_result,
    step_options,
    trace_option,
    verbose_option,
)


def _tool(
    name: str | None,
    trace: str | None,
    range: str | None,  # noqa: A002 - the option's name
    step_marker: str | None,
    steps: str | None,
    as_list: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run a small analysis over the events of a trace.

    NAME is one of `daydream tool --list`, or the path of a Python file with a class under
    @daydream.tool. --range leaves a part of the trace: layer:GLOB, step:NUMBER,
    annotation:REGEX or kernels:FIRST-LAST. What is launched there and its backward pass
    belong to it.
    """
    from daydream.cli.output import print_json, print_screen
    from daydream.report.blocks import Facts
    from daydream.report.views.records import records
    from daydream.tools.finding import find_tool, tools
    from daydream.tools.run import run_tool

    if as_list:
        if as_json:
            print_json({"tools": [{"name": each, "summary": said} for each, said in tools().items()]})
            return
        print_screen([Facts(list(tools().items()))])
        return
    if name is None:
        lacks = "missing argument 'NAME'; `daydream tool --list` shows the tools"
        raise click.UsageError(lacks, click.get_current_context())
    need_trace(trace)
    with stdout_for_the_result():
        cls = find_tool(name)  # before the trace is read, which takes longer
    found = ask_rows(
        trace, step_marker, steps, "running the tool", lambda recording: run_tool(cls, recording, range)
    )
    if as_json:
        print_json(found)
    else:
        print_screen(records(found, verbose=verbose))


command = click.Command(
    "tool",
    callback=_tool,
    help=_tool.__doc__,
    short_help="Run a small analysis over the events of a trace, or your own by its path.",
    params=[
        click.Argument(["name"], required=False),
        trace_option(),
        click.Option(["--range"], metavar="RANGE", help="The part of the trace that the tool sees."),
        *step_options(),
        cache_option(),
        click.Option(["--list", "as_list"], is_flag=True, help="Show the tools that there are."),
        verbose_option("every row"),
        json_option(),
    ],
)
