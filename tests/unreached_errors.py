"""List the errors of its own that the product raises and no test reaches: `file:line error` of each.

    python -m coverage run -m pytest && python -m coverage json
    python tests/unreached_errors.py coverage.json

What tests reach in processes of their own is seen where coverage follows these (`coverage combine`).
"""

import ast
import json
import sys
from pathlib import Path

from daydream import errors


def unreached(report):
    """Return each `raise` of one of the product's own errors in lines that a report of coverage lacks."""
    found = []
    for file, lines in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and node.exc and node.lineno in lines["missing_lines"]:
                name = ast.unparse(node.exc).split("(")[0]
                if hasattr(errors, name):
                    found.append(f"{file}:{node.lineno} {name}")
    return found


if __name__ == "__main__":
    missing = unreached(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{each}\n" for each in missing))
    sys.exit(bool(missing))
