"""What optimizations may import, and that what is promised to them changes on purpose only.

After a change that is meant, `DAYDREAM_GOLDEN=write pytest tests/test_extension_page.py` writes the
signatures again; read the difference: what goes or changes its meaning
needs an alias for a release.
"""

import ast
import enum
import importlib
import inspect
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

import daydream

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "optimizations").glob("*.py"))
GOLDEN = ROOT / "tests" / "golden" / "signatures.txt"
PAGE = ROOT / "docs" / "extending.md"
PACKAGES = (
    "daydream", "daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms"
)  # fmt: skip
WORDS = (  # of classes, besides public methods
    "__and__", "__bool__", "__call__", "__contains__", "__enter__", "__exit__", "__getattr__", "__getitem__",
    "__iter__", "__len__", "__or__", "__sub__",
)  # fmt: skip


def imports(tree):
    """Yield module and name of everything of daydream that a file imports, at its top or later."""
    for node in ast.walk(tree):
        for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            module = getattr(node, "module", each.name) or ""
            if module.split(".")[0] in {"daydream", ""}:
                yield module, each.name


def is_promised(module, name):
    """Whether a file that ships may import it: of the packages also what no other file is promised."""
    if module in PACKAGES:
        names = importlib.import_module(module)._HOMES.values()
        return name == "stages" or any(name in each for each in names)
    of, _, sibling = module.rpartition(".")
    if module in (
        "daydream.instrument",
        "daydream.instrument.tools",
    ):  # what makes changes for real
        made = importlib.import_module(module)
        return name in getattr(made, "__all__", vars(made))
    theirs = (sibling, "apply", "memory")
    return of == "daydream.optimizations" and (sibling.startswith("_") or name in theirs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_optimization_imports_promised_names_only(path):
    found = list(imports(ast.parse(path.read_text(encoding="utf-8"))))

    assert [f"{module}: {name}" for module, name in found if not is_promised(module, name)] == []


# The signatures ----------------------------------------------------------------------------------


def written(value):
    """Return a default value as all versions of Python and numpy write it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return value if type(value).__repr__ is object.__repr__ else re.sub(r" at 0x\w+", "", repr(value))


def signature(function):
    found = inspect.signature(function)
    words, only_named = [], False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not only_named:
            words.append("*")
        only_named |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        hint = "" if each.annotation is each.empty else f": {annotation(each.annotation)}"
        default = "" if each.default is each.empty else f" = {written(each.default)}"
        words.append(f"{star}{each.name}{hint}{default}")
    returned = found.return_annotation
    back = "" if returned is found.empty else f" -> {annotation(returned)}"
    return f"({', '.join(words)}){back}"


def annotation(hint):
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def members(class_):
    """Yield a line for each public method and property, those of the project's base classes too."""
    for name in sorted(dir(class_)):
        home = next((base for base in class_.__mro__ if name in vars(base)), object)
        if (name.startswith("_") and name not in WORDS) or not home.__module__.startswith("daydream"):
            continue
        value = vars(home)[name]
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            get = value.fget if isinstance(value, property) else value.func
            yield f"{name}{signature(get).partition(')')[2]}"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{name}{signature(getattr(class_, name))}"
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"


def signatures(package):
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        value, full = getattr(module, name), f"{package}.{name}"
        value = getattr(value, name, value) if isinstance(value, ModuleType) else value  # daydream.simulate
        if package != "daydream" and name in daydream.__all__:
            yield f"{full} is daydream.{name}"
        elif inspect.isclass(value):
            bases = [base.__name__ for base in value.__bases__ if base.__module__.startswith("daydream")]
            head = "" if issubclass(value, Exception) else signature(value)
            yield f"class {full}{head}{f', a {bases[0]}' if bases else ''}"
            yield from (f"    {line}" for line in members(value))
        elif isinstance(value, ModuleType):
            yield f"module {full}: {', '.join(each for each in vars(value) if each.isupper())}"
        elif callable(value) and not hasattr(value, "__origin__"):
            yield f"{full}{signature(value)}"
        elif str(type(value)).startswith(("<class 'types.", "<class 'typing.")):
            yield f"{full} = {value}"
        else:
            yield f"{full}: {type(value).__name__}"


def test_signatures_of_public_names_are_as_reviewed():
    found = "\n".join(line for package in PACKAGES for line in signatures(package)) + "\n"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")

    assert found == GOLDEN.read_text(encoding="utf-8")


# The page ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_the_page_has_a_row_for_each_promised_name(package):
    text = PAGE.read_text(encoding="utf-8")
    part = re.search(rf"^## `{re.escape(package)}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    shown = re.findall(r"^\| `(\w+)[^`]*` \| .*$", part, re.MULTILINE)
    assert sorted(shown) == sorted(importlib.import_module(package).__all__)
