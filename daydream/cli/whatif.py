"""`daydream whatif`: predict a change. The options of what is named become options of the command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, OptionTaker, contention_option
from daydream.cli.source import (
    capacity_option,
    force_option,
    json_option,
    need_trace,
    read,
    stdout_for_the_result,
    table_option,
    trace_options,
    trace_words,
    verbose_option,
)
from daydream.cli.written import check_files, html_option, ranking_option, tell, timeline_option, write_files

if TYPE_CHECKING:
    from daydream.cli.progress import Progress
    from daydream.memory.result import MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.predict.suggest import WhatIfResult
    from daydream.trace.trace import Trace
    from daydream.transforms.registry import Optimization

GATE = 3  # the exit code of a step that a gate does not let pass
TYPED = "daydream.arguments"  # where a context keeps the arguments as they were typed


class WhatIf(OptionTaker):
    """A command that takes the options of the optimizations it is asked about."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the optimizations' name among the arguments, then parse with their options."""
        if not {"--list", "--help", "-h"} & set(args) or self._words(args):
            with stdout_for_the_result():
                self._choose(ctx, args)
        ctx.meta[TYPED] = list(args)
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the optimizations that are named, else the command's own and their names."""
        chosen: list[Optimization] | None = ctx.meta.get(CHOSEN)
        if not chosen:
            from daydream.transforms.registry import names

            super().format_help_text(ctx, formatter)
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Optimizations: {', '.join(names())}, or your own .py file.")
            return
        for optimization in chosen:
            title = [f"{optimization.name}:"] if len(chosen) > 1 else []
            with formatter.indentation():
                for paragraph in [*title, *optimization.help.split("\n\n")]:
                    formatter.write_paragraph()
                    formatter.write_text(paragraph)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the optimizations' options before those that every what-if has."""
        own = click.Command.get_params(self, ctx)
        theirs = [param for param in self.get_params(ctx) if param not in own]
        chosen: list[Optimization] = ctx.meta.get(CHOSEN) or []
        named = "+".join(each.name for each in chosen)
        general = "Options of every what-if" if named else "Options"
        for title, params in ((f"Options of {named}", theirs), (general, own)):
            options = [param for param in params if isinstance(param, click.Option)]
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what follows the command's name in its usage line."""
        return ["--trace TRACE", "[OPTIONS]"] if ctx.meta.get(CHOSEN) else super().collect_usage_pieces(ctx)

    def _choose(self, ctx: click.Context, args: list[str]) -> None:
        from daydream.cli.whatif_options import optimizations_named

        words = self._words(args)
        if not words:
            return
        sure = [word for word, maybe_value in words if not maybe_value]
        # Behind an unknown option a word may or may not have been taken as its value.
        chosen = sure[0] if sure else next((word for word, _ in words if _is_known(word)), words[0][0])
        ctx.meta[CHOSEN] = optimizations_named(ctx, chosen)
        ctx.info_name = f"{ctx.info_name} {chosen}"

    def _words(self, args: Sequence[str]) -> list[tuple[str, bool]]:
        """Return the arguments that are no options, and whether an unknown option may have taken each."""
        takes_value = {
            flag: not option.is_flag
            for option in self.params if isinstance(option, click.Option) for flag in option.opts
        }  # fmt: skip
        words: list[tuple[str, bool]] = []
        skip = maybe = False
        for place, arg in enumerate(args):
            if skip:
                skip = False
            elif arg == "--":
                return words + [(rest, False) for rest in args[place + 1 :]]
            elif re.match(r"-[^\d.]", arg):
                known = takes_value.get(arg)
                skip = bool(known)
                maybe = known is None and "=" not in arg and not arg.startswith(("-o", "-h", "--help"))
                continue
            else:
                words.append((arg, maybe))
            maybe = False
        return words


def _is_known(word: str) -> bool:
    from daydream.transforms.registry import names

    known = names()
    return all(part in known or part.endswith(".py") for part in word.split("+"))


def _whatif(
    name: str | None,
    trace: str | None,
    step_marker: str | None,
    steps: str | None,
    table: str | None,
    contention: str,
    capacity: int | None,
    fail_above: float | None,
    output: str | None,
    html: str | None,
    no_ranking: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
    as_list: bool,
    **options: Any,
) -> None:
    """Predict what a change would give: its step time, with the measured and the replayed one.

    NAME is an optimization, several joined by + (in any order), or the path of a Python
    file with your own. `daydream whatif NAME --help` shows its options.
    """
    if as_list:
        from daydream.cli.whatif_list import print_list

        print_list(as_json=as_json)
        return
    ctx = click.get_current_context()
    if name is None:
        raise click.UsageError("name an optimization, such as amp; `daydream whatif --list` shows them", ctx)
    trace = need_trace(trace)
    import daydream
    from daydream.cli.output import free_name, print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.report.view import view

    check_files(output, html, force=force, chakra=True)
    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress, typical=True)
        progress("replaying")
        replay = daydream.replay(recording, table=table)
        progress(f"predicting {name}")
        again = trace_words(trace, step_marker, steps)
        comparison = _predict(ctx, replay, ctx.meta[CHOSEN], options, contention, capacity, again)
        written = write_files(
            output, html, replay, comparison, force=force, ranked=not no_ranking, progress=progress,
            memory=_recorded_memory(recording, capacity) if html else None,
        )  # fmt: skip
        then = None if as_json else _suggestion(ctx, comparison, options, progress)
    if as_json:
        print_json(comparison.to_json())
    else:
        print_screen(view(comparison, verbose=verbose, suggestion=then))
    tell(written)
    if (above := above_gate(comparison, fail_above)) is not None:
        click.echo(above, err=True)
        ctx.exit(GATE)
    if not written and not as_json:
        typed = list(ctx.meta[TYPED])
        if then is None or verbose:
            print_next("whatif", *typed, "-o", free_name(comparison.optimization, ".json.gz"))
        else:
            typed[typed.index(name)] = f"{name}+{then.optimization}"
            print_next("whatif", *typed, *then.command[3:])


def _suggestion(
    ctx: click.Context, comparison: Prediction, given: Mapping[str, Any], progress: Progress
) -> WhatIfResult | None:
    """Return what to try on top of this; nothing where it cannot be told how that is typed."""
    from daydream.cli.whatif_options import option_values
    from daydream.predict.suggest import suggestion

    chosen, typed = ctx.meta[CHOSEN], ctx.meta[TYPED]
    if typed.count(ctx.params["name"]) != 1 or "--" in typed:
        return None
    progress("looking for what to try next")
    return suggestion(comparison, chosen, option_values(chosen, given))


def _number(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # noqa: PLR0124 - not a number is all that differs from itself
        raise click.BadParameter("'nan' is not a time in ms")
    return value


def above_gate(comparison: Prediction, limit_ms: float | None) -> str | None:
    """Return what is said of a step that a gate does not let pass; None where it does, or is none."""
    if limit_ms is None:
        return None
    if comparison.predicted_ns is None:
        return f"above the gate: the step is not known, and {limit_ms:.2f} ms allowed"
    if comparison.predicted_ns / 1e6 <= limit_ms:
        return None
    return (
        f"above the gate: {comparison.predicted_ns / 1e6:.2f} ms are predicted, and {limit_ms:.2f} ms allowed"
    )


def _recorded_memory(recording: Trace, capacity: int | None) -> MemoryReport | None:
    """Return who holds the memory of a trace; None where its events do not tell."""
    from daydream.errors import DaydreamError
    from daydream.memory.report import memory_of

    try:
        return memory_of(recording, capacity=capacity)
    except DaydreamError:
        return None


def _predict(
    ctx: click.Context,
    replay: Replay,
    optimizations: list[Optimization],
    given: Mapping[str, Any],
    contention: str,
    capacity: int | None,
    trace: list[str],
) -> Prediction:
    from daydream.cli.failures import of_optimizations, with_advice
    from daydream.cli.whatif_options import option_values
    from daydream.predict.prediction import predict
    from daydream.transforms.compose import edit_of

    edit = edit_of(optimizations, option_values(optimizations, given))
    with of_optimizations(ctx, edit.name), with_advice(replay.graph, optimizations, trace):
        return predict(replay, edit, contention=contention, capacity_bytes=capacity)


def _parameters() -> list[click.Parameter]:
    trace, *steps = trace_options()
    trace.required = False  # not with --list; asked for in the command
    return [
        click.Argument(["name"], required=False, metavar="NAME[+NAME...]"),
        trace,
        *steps,
        table_option(),
        contention_option(),
        capacity_option(),
        click.Option(
            ["--fail-above"],
            type=click.FloatRange(min=0),
            callback=_number,
            metavar="MS",
            help="Exit with 3 if the predicted step takes longer, or is not known: a gate for CI.",
        ),
        timeline_option("measured, replayed and predicted", chakra=True),
        html_option(),
        ranking_option(),
        force_option(),
        verbose_option("phases, layers, the options that were used and every note"),
        json_option(),
        click.Option(["--list", "as_list"], is_flag=True, help="List the optimizations."),
    ]


command = WhatIf(
    "whatif",
    callback=_whatif,
    help=_whatif.__doc__,
    short_help="Predict what an optimization would give.",
    params=_parameters(),
)
