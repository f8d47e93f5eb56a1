"""Commands that take the options of the optimizations they are given."""

from __future__ import annotations

import click

from daydream.cli.source import stdout_for_the_result

CHOSEN = "daydream.optimizations"  # where a context keeps what was named


class OptionTaker(click.Command):
    """A command that has the options of what a context holds as `CHOSEN`, behind its own or before them."""

    theirs_first = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options and those of the optimizations."""
        from daydream.cli.whatif_options import click_options

        chosen = ctx.meta.get(CHOSEN)
        own = super().get_params(ctx)
        theirs = click_options(chosen, own) if chosen else []
        return [*theirs, *own] if self.theirs_first else [*own, *theirs]


class FlagTaker(OptionTaker):
    """A command whose option `flag` names the optimizations."""

    flag: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find what the flag names among the arguments, then parse with their options."""
        from daydream.cli.whatif_options import optimizations_named

        named = _value_of(self.flag, args)
        if named is not None:
            with stdout_for_the_result():
                ctx.meta[CHOSEN] = optimizations_named(ctx, named)
        return super().parse_args(ctx, args)


def _value_of(option: str, args: list[str]) -> str | None:
    """Return the value that an option has among arguments that are not parsed yet: the last one, as click."""
    value = None
    for place, arg in enumerate(args):
        if arg == "--":
            break
        if arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
        elif arg == option and place + 1 < len(args):
            value = args[place + 1]
    return value
