"""`%load_ext daydream` and `%%daydream`: record the training steps of a notebook's cell."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from daydream.errors import DaydreamError


@magics_class
class DaydreamMagics(Magics):  # type: ignore[misc]  # an extra's class, which may be absent
    """The magic of a notebook's shell."""

    @cell_magic
    @magic_arguments()
    @argument("name", nargs="?", metavar="WHATIF")
    @argument("-o", "--output", metavar="FILE")
    @argument("--force", action="store_true")
    @argument("--steps", type=int, default=3)
    @argument("--warmup", type=int, default=5)
    @argument("--no-memory", action="store_true")
    def daydream(self, line: str, cell: str) -> Any:
        """Record the training steps of this cell; show what would shorten them, or one what-if.

        `%%daydream` ranks what would help, `%%daydream fused-adam` predicts that, `-o t.parquet` keeps the
        trace. The cell runs as it would without; it needs some 30 training steps.
        """
        import daydream

        try:
            chosen = parse_argstring(self.daydream, line)
        except UsageError as error:
            usage = self.daydream.parser.format_usage().strip()
            raise UsageError(f"%%daydream: {error}. Its options are: {usage}") from None
        shell = self.shell
        with tempfile.TemporaryDirectory() as folder:
            path = chosen.output or str(Path(folder, "cell.parquet"))
            settings = {"steps": chosen.steps, "warmup": chosen.warmup, "force": chosen.force}
            try:
                with daydream.collect(path, memory=not chosen.no_memory, **settings):
                    source = shell.transform_cell(cell)  # its lines are for tracebacks
                    name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
                    shell.ex(compile(source, name, "exec"))
                replay = daydream.replay(path)
                if chosen.name is not None:
                    return daydream.whatif(replay, chosen.name)
                return daydream.rank(replay, pairs=0, with_curves=False)
            except DaydreamError as error:
                print(f"daydream: {error}", file=sys.stderr)  # noqa: T201 - where a notebook looks for it
                return None


def load_ipython_extension(shell: Any) -> None:
    """Give a shell the magic: what `%load_ext daydream` calls."""
    shell.register_magics(DaydreamMagics)
