"""What `tools/size.py` counts, on small texts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import size as tool


@pytest.mark.parametrize(
    ("text", "tokens", "lines"),
    [
        ("", 0, 0),
        ("a = 1  # one\n\n\nb = a\n", 6, 2),
        ('"""What it is."""\n\nx = 1\n', 3, 1),
        ('"""Two\nlines."""\n', 0, 0),
        ('def f():\n    """Doc.\n\n    More of it.\n    """\n    return "a b"\n', 7, 2),
        ('"one " "docstring"\nx = "not one"\n', 3, 1),
        ('x = """three\nwords here\n"""\n', 2 + 4, 3),
        ('def f():\n    a = 1\n    """three words\n    here"""\n', 5 + 3 + 3, 4),
        ('f"{a} b {c:.2f}"', 11, 1),
        ('f"{a.b(1, x)!r:>{w}}"', 2 + 2 + 8 + 2 + 1 + 1 + 3, 1),
        ('rf"""two words {x}\n"""', 2 + 1 + 3, 2),
    ],
)
def test_tokens_and_lines_of_small_texts(text, tokens, lines):
    assert tool.size(text) == (tokens, lines)
