"""`daydream import`: a profiler's files to one parquet trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from daydream.cli.options import engine_option
from daydream.cli.source import force_option, handle_options, json_option, read, step_options

if TYPE_CHECKING:
    from daydream.parallel.engines import Engine

NOT_PARQUET = (".json", ".gz", ".sqlite", ".db", ".etdp")


def _ranks(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(rank) for rank in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of ranks such as 0,1,4", ctx, param) from None


def _import(
    source: tuple[str, ...],
    output: str | None,
    step_marker: str | None,
    steps: str | None,
    ranks: tuple[int, ...] | None,
    engine: Engine,
    etrecord: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Import a profiler's recording as a small parquet trace.

    SOURCE is Kineto JSON from torch.profiler (.json, .json.gz), an Nsight Systems
    export (.sqlite, .sqlite.gz), or an ExecuTorch ETDump (.etdp) or table of its Inspector
    (.json, .parquet). Several files, or a folder of them, are the ranks of
    one job, which --engine reads side by side. Only named fields are copied: environment
    dumps and the like are left out.
    """
    from daydream.cli.output import check, print_json, print_screen, quoted, trace_name
    from daydream.cli.progress import Progress
    from daydream.report.overview import rows_by_kind
    from daydream.report.views.records import imported

    if output is not None and output.endswith(NOT_PARQUET):
        raise click.BadParameter(
            "the output is a parquet trace; name it .parquet", click.get_current_context(), param_hint="-o"
        )
    target = Path(output or trace_name(list(source)))
    if target.is_dir():
        target = target / trace_name(list(source))
    check(target, force=force)
    with Progress() as progress:
        trace = read(source, step_marker, steps, progress, ranks, engine, keep=False, etrecord=etrecord)
        progress(f"writing {target}")
        trace.save(target, force=force)
    kinds = rows_by_kind(trace)
    if as_json:
        found = trace.metadata.get("steps", [])
        print_json({
            "trace": str(target),
            "source": trace.metadata.get("source"),
            "rows": len(trace),
            "rows_by_kind": kinds,
            "ranks": sorted({step.get("rank", 0) for step in found}),
            "step_source": trace.metadata.get("step_source"),
            "steps": len(found),
            "covered": sum(bool(step.get("covered")) for step in found),
            "bytes": target.stat().st_size,
            "notes": trace.metadata.get("notes", []),
        })  # fmt: skip
        return
    print_screen(imported(trace, kinds))
    click.echo(f"wrote {target} ({target.stat().st_size:,} bytes)", err=True)
    click.echo(f"next: daydream info {quoted(target)}", err=True)


command = click.Command(
    "import",
    callback=_import,
    help=_import.__doc__,
    short_help="Turn a profiler's files into one small parquet trace.",
    params=[
        click.Argument(["source"], nargs=-1, required=True, metavar="SOURCE..."),
        click.Option(
            ["-o", "--output"],
            metavar="FILE",
            help="Where to write; the source's name with .parquet in the current folder if not given.",
        ),
        *step_options(),
        click.Option(
            ["--ranks"],
            metavar="LIST",
            callback=_ranks,
            help="Ranks of the files in their order, as 0,1,4, where neither they nor their names say.",
        ),
        click.Option(
            ["--etrecord"],
            metavar="FILE",
            help="The ETRecord of the program that an ETDump is of: layers and operators of its events.",
        ),
        *handle_options(),
        engine_option(),
        force_option(),
        json_option(),
    ],
)
