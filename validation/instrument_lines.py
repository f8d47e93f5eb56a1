"""Lines of code of the tools that ship, beside the same by hand and beside the paper's table.

python validation/instrument_lines.py > docs/instrument_lines.md
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from size import size

TOOLS = ROOT / "daydream" / "instrument" / "tools.py"
BY_HAND = Path(__file__).with_name("by_hand.py")
OWN = Path(__file__).with_name("own_changes")
OF = {  # what a tool is made of
    "tracing": ["Tracing"], "sparsity": ["Sparsity"], "pruning": ["mask_of", "Pruning"],
    "quantization": ["scale_of", "rounded", "FakeQuantization"], "statistics": ["ActivationStatistics"],
    "rematerialization": ["Rematerialization"], "replacing": ["Replacing"],
    "effective_path": ["EffectivePath"], "mapping": ["Mapping"],
}  # fmt: skip
# Amanda (ASPLOS 2024), table 4: lines of the project, and of the same as a tool of the paper.
PAPER = (
    ("Tile-wise pruning (TensorFlow)", 1203, 213), ("Dynamic channel pruning", 387, 115),
    ("Activation pruning", 650, 193), ("Attention pruning", 1105, 179), ("APEX vector-wise (2:4) pruning", 499, 279),
)  # fmt: skip
TEXT = """# Lines of code of a tool

Made by `python validation/instrument_lines.py > docs/instrument_lines.md`; a test holds it. Lines
with code, of tools without imports.

## Tools that ship

*By hand*: the same for the modules of one model, `validation/by_hand.py`, with the same losses (tested). It changes modules of the
types that it names, and not what a model calls as a function, custom operators or scripts that cannot be edited; options (static
or dynamic, a share or 2:4, places in operators of one's own) are the tool's alone. For one change in one model by hand is shorter.

| tool | lines | by hand |
|---|--:|--:|
{tools}

## Own changes: the prediction and the change in one file

Files of `validation/own_changes`.

| file | lines |
|---|--:|
{own}

## The paper's table

Amanda (ASPLOS 2024), table 4: projects of the community, and the same as the paper's tools. Those choose what to prune and train
on, which the files above do not: of the rows only the 2:4 pattern of the last is what `pruning` does.

| project | its lines | the paper's tool |
|---|--:|--:|
{paper}
"""


def main() -> None:
    """Print the page."""
    print(page(), end="")


def page() -> str:
    """Return the page."""
    own, hand = parts(TOOLS), parts(BY_HAND)
    rows = [
        f"| `{name}` | {sum(own[one] for one in of)} | {hand.get(name, '-')} |" for name, of in OF.items()
    ]
    files = [
        f"| `{path.stem}` | {size(path.read_text())[1]} |"
        for path in sorted(OWN.glob("*.py")) if path.stem != "train"
    ]  # fmt: skip
    paper = [f"| {name} | {project} | {tool} |" for name, project, tool in PAPER]
    return TEXT.format(tools="\n".join(rows), own="\n".join(files), paper="\n".join(paper))


def parts(path: Path) -> dict[str, int]:
    """Return the lines of each class and function of a file."""
    text = path.read_text()
    found = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef | ast.FunctionDef))
    return {one.name: size(ast.get_source_segment(text, one) or "")[1] for one in found}


if __name__ == "__main__":
    main()
