"""`--engine`: where many independent questions are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daydream.parallel.engines import Engine


def _engine(ctx: click.Context, param: click.Parameter, value: str) -> Engine:
    from daydream.errors import DaydreamError
    from daydream.parallel.engines import engine_of

    try:
        return engine_of(value)
    except DaydreamError as error:
        if error.__cause__ is not None:  # not installed: nothing is wrong with what was typed
            raise
        raise click.BadParameter(str(error), ctx, param) from None


def engine_option() -> click.Option:
    """Return `--engine`."""
    return click.Option(
        ["--engine"],
        callback=_engine,
        default="local",
        show_default=True,
        metavar="ENGINE",
        help="Where it runs: local (this process), processes[:N], dask[:N] or dask:tcp://HOST:PORT.",
    )
