"""`daydream example`: traces and scripts that come with daydream, for a first try."""

from __future__ import annotations

from pathlib import Path

import click

from daydream.cli.source import force_option, json_option

PACKAGE = "daydream.examples"
GPU = "synthetic_gpt_gpu.json.gz"
EXAMPLES = {  # file -> what it is, and the command to try with it
    GPU: ("a small GPT's training on a GPU that does not exist: round figures", "rank --trace {}"),
    "mlp_cpu.json.gz": ("a perceptron's training on a CPU, recorded", "explain --trace {}"),
    "my_optimization.py": ("an optimization of your own", f"whatif ./{{}} --trace {GPU}"),
    "train_gpt.py": ("a small GPT on random tokens, to record with torch", "collect {}"),
    "train_cnn.py": ("a small network whose images a loader makes, to record", "collect {}"),
    "train_ddp.py": ("a perceptron on two ranks, to record", "collect --nproc-per-node 2 {}"),
}


def _example(name: str | None, output: str | None, force: bool, as_json: bool) -> None:
    """Write one of the example traces or scripts, or list them.

    NAME is one of the list; the file is written to the current folder. No network is
    needed. Where public traces of real GPUs are to be had is in docs/quickstart.md.
    """
    from daydream.cli.output import print_json, quoted
    from daydream.errors import DaydreamError
    from daydream.files.atomic import write_whole

    if name is None:
        if as_json:
            print_json({"examples": [{"name": each, "what": what} for each, (what, _) in EXAMPLES.items()]})
            return
        width = max(map(len, EXAMPLES))
        click.echo("\n".join(f"  {each:<{width}}  {what}" for each, (what, _) in EXAMPLES.items()))
        click.echo(f"next: daydream example {GPU}", err=True)
        return
    if name not in EXAMPLES:
        raise DaydreamError(f"unknown example {name!r}; choose {', '.join(EXAMPLES)}")
    target = Path(output or name)
    if target.is_dir():
        target = target / name
    content = _content(name)
    write_whole(target, lambda temporary: Path(temporary).write_bytes(content), force=force)
    if as_json:
        print_json({"example": name, "path": str(target), "bytes": len(content)})
        return
    click.echo(f"wrote {target} ({len(content):,} bytes)", err=True)
    click.echo(f"next: daydream {EXAMPLES[name][1].format(quoted(target))}", err=True)


def _content(name: str) -> bytes:
    from importlib.resources import files

    return (files(PACKAGE) / name).read_bytes()


command = click.Command(
    "example",
    callback=_example,
    help=_example.__doc__,
    short_help="Write an example trace or script, for a first try.",
    params=[
        click.Argument(["name"], required=False, metavar="NAME"),
        click.Option(["-o", "--output"], metavar="FILE", help="Where to write; NAME here if not given."),
        force_option(),
        json_option(),
    ],
)
