"""`%load_ext daydream` and `%%daydream`: record the training steps of a notebook's cell."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from daydream.errors import DaydreamError


class _Parser(argparse.ArgumentParser):
    """Options of the magic: a mistake is a line in the notebook and not the end of its process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%daydream: {message}. Its options are: {self.format_usage().strip()}")


def _options() -> argparse.ArgumentParser:
    parser = _Parser("%%daydream", add_help=False)
    parser.add_argument("name", nargs="?", metavar="WHATIF")
    parser.add_argument("-o", "--output", metavar="FILE")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true")
    return parser


@magics_class
class DaydreamMagics(Magics):  # type: ignore[misc]  # an extra's class, which may be absent
    """The magic of a notebook's shell."""

    @cell_magic  # type: ignore[untyped-decorator]
    def daydream(self, line: str, cell: str) -> Any:
        """Record the training steps of this cell; show what would shorten them, or one what-if.

        `%%daydream` ranks what would help, `%%daydream fused-adam` predicts that, `-o t.parquet` keeps the
        trace. The cell runs as it would without; it needs some 30 training steps.
        """
        import daydream

        chosen = _options().parse_args(shlex.split(line))
        with tempfile.TemporaryDirectory() as folder:
            path = chosen.output or str(Path(folder, "cell.parquet"))
            settings = {
                "steps": chosen.steps,
                "warmup": chosen.warmup,
                "memory": not chosen.no_memory,
            }
            try:
                with daydream.collect(path, force=chosen.force, **settings) as recording:
                    self._run(cell)
                return _answer(recording.trace, chosen.name)
            except DaydreamError as error:
                print(f"daydream: {error}", file=sys.stderr)  # noqa: T201 - where a notebook looks for it
                return None

    def _run(self, cell: str) -> None:
        """Run the cell's code among the notebook's variables, with its lines for tracebacks."""
        shell = self.shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        with shell.builtin_trap:
            exec(compile(source, name, "exec"), shell.user_ns)  # noqa: S102 - it is what a cell is for


def _answer(trace: Any, name: str | None) -> Any:
    import daydream

    replay = daydream.replay(trace)
    if name is None:
        return daydream.rank(replay, pairs=0, with_curves=False)
    return daydream.whatif(replay, name)


def load_ipython_extension(shell: Any) -> None:
    """Give a shell the magic: what `%load_ext daydream` calls."""
    shell.register_magics(DaydreamMagics)
