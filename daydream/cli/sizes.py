"""Amounts of memory as they are typed: `24GB`, `79.6GiB`, `512MiB`, bytes without a unit."""

from __future__ import annotations

import re

import click

from daydream.lazy import regex

UNITS = " KMGT"
SIZE = regex(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE | re.ASCII)


def bytes_of(text: str) -> int:
    """Return how many bytes a text means: 1 GB is 1e9 bytes, 1 GiB is 2**30, and `G` is GB.

    Raises:
        ValueError: it is no amount, or none of at least one byte.

    """
    from decimal import Decimal  # for those who type one

    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 24GB or 79.6GiB")
    unit = (1024 if found[3] else 1000) ** UNITS.index((found[2] or " ").upper())
    nbytes = int(Decimal(found[1]) * unit)
    if nbytes < 1:
        raise ValueError(f"{text!r} is less than one byte; a size such as 24GB was needed")
    return nbytes


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of an option's value: a click callback."""
    if value is None:
        return None
    try:
        return bytes_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def capacity_option() -> click.Option:
    """Return `--capacity`: an int of bytes, or None."""
    return click.Option(
        ["--capacity"],
        metavar="SIZE",
        callback=size,
        help="What each device may give, such as 24GB or 79.6GiB (bytes without a unit): does it fit?",
    )
