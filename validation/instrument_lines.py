"""Lines of code of the tools that ship, beside the same by hand and beside the paper's table.

python validation/instrument_lines.py docs/evaluation
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from size import size
from tables import keep

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


def main() -> None:
    """Print the tables, or write them into the folder that is named."""
    keep(Path(sys.argv[1]) if sys.argv[1:] else None, "instrument lines", page())


def page() -> Iterator[str]:
    """Yield three tables: tools that ship, and the same by hand; own changes; the paper's table 4."""
    own, hand = parts(TOOLS), parts(BY_HAND)
    yield from ("| tool | lines | by hand |", "|---|--:|--:|")
    yield from (
        f"| {name} | {sum(own[one] for one in of)} | {hand.get(name, '-')} |" for name, of in OF.items()
    )
    yield from ("", "| file | lines |", "|---|--:|")
    for path in sorted(OWN.glob("*.py")):
        if path.stem != "train":
            yield f"| {path.stem} | {size(path.read_text())[1]} |"
    yield from ("", "| project | its lines | the paper's tool |", "|---|--:|--:|")
    yield from (f"| {name} | {project} | {tool} |" for name, project, tool in PAPER)


def parts(path: Path) -> dict[str, int]:
    """Return the lines of each class and function of a file."""
    text = path.read_text()
    found = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef | ast.FunctionDef))
    return {one.name: size(ast.get_source_segment(text, one) or "")[1] for one in found}


if __name__ == "__main__":
    main()
