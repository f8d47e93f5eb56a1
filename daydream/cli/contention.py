"""`--contention`: how kernels and transfers that overlap slow each other."""

from __future__ import annotations

import click


def _checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from daydream.errors import GraphError
    from daydream.predict.contention_option import parsed

    try:
        parsed(value)
    except GraphError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


def contention_option() -> click.Option:
    """Return `--contention`."""
    return click.Option(
        ["--contention"],
        default="measured",
        callback=_checked,
        metavar="measured|off|F[,F]",
        help="How many times as long kernels take during a transfer, and, second, transfers during kernels. "
        "By default as measured in the trace, where it can be.",
    )
