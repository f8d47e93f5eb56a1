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


def test_a_file_counts_to_the_room_of_its_folder(tmp_path):
    files = {
        "daydream/graph/a.py": "x = 1\n",
        "daydream/trace/b.py": "x = 1\ny = 2\n",
        "daydream/loose.py": "x\n",
        "optimizations/amp.py": "a(b)\n",
        "daydream/compiled/c.c": "int x;\n\nint y;\n",
        "daydream/report/assets/a.js": "f()\n",
        "tests/test_a.py": "assert x\n",
        "benchmarks/b.py": "x\n\ny\n",
        "docs/page.md": "four words are here",
        "docs/nb.ipynb": '{"cells": [{"cell_type": "code", "source": ["a\\n", "b"]}, {"cell_type": "raw"}]}',
        ".venv/daydream/x.py": "x\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {room: (size.amount, size.files) for room, size in tool.rooms(tmp_path).items()}
    assert found == {
        "core": (3, 1),
        "reading and recording": (7, 2),
        "knowledge": (4, 1),
        "surface": (0, 0),
        "world": (0, 0),
        "product": (14, 4),
        "tests": (2, 1),
        "benchmarks, validation, tools": (3, 1),
        "README and docs": (4, 1),
        "C": (3, 1),
        "other code": (3, 2),
    }


def test_a_room_over_its_budget_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "daydream" / "cli").mkdir(parents=True)
    (tmp_path / "daydream" / "cli" / "a.py").write_text("a = 1\nb = a\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main([]) == 0
    monkeypatch.setitem(tool.BUDGETS, "surface", tool.Budget(5, 0, 2.5))
    assert tool.main([]) == 1
    assert capsys.readouterr().err.split("\n", 1)[1].splitlines() == [
        "surface: 6 tokens (lines, words), at most 5",
        "surface: 1 files, at most 0",
        "surface: 3.0 tokens a line, at most 2.5",
    ]
