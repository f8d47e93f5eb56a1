"""Command lines: every command that reads a trace, with options that it has, sane ones and others."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

NUMBERS = (
    "0",
    "1",
    "2",
    "0.5",
    "-1",
    "1e-300",
    "1e300",
    "nan",
    "inf",
    "",
    "1e18",
    "2147483647",
    "99999999999999999999",
)
WORDS = (
    "a100",
    "h100",
    "cpu",
    "gpu",
    "none",
    ".*",
    "(",
    "kernel",
    "*",
    "float16",
    "\x1b[31m",
    "off",
    "1,2",
    "nvlink",
)
SANE = ("1", "2", "4", "8", "0.5", "1.5", "10", "100")


@cache
def optimizations() -> list[Any]:
    """Return the optimizations that ship."""
    from daydream.transforms.registry import loadable

    return loadable()[0]


def command(trace: str, chance: random.Random, *, other: str | None = None, wild: bool = False) -> list[str]:
    """Return the words of one command about a trace; `wild` takes values that no option should."""
    ask = {
        "info": 4, "replay": 4, "timeline": 2, "html": 1, "explain": 5, "rank": 1, "whatif": 12, "pair": 2, "scaling": 2,
        "compare": 3, "sweep": 2, "import": 5, "explain_whatif": 1, "compare_whatif": 1, "list": 0.2,
    }  # fmt: skip
    chosen = chance.choices(list(ask), list(ask.values()))[0]
    steps = chance.choices(
        [[], ["--steps", "auto"], ["--step-marker", chance.choice(("a", "Step", ".*"))]], [8, 1, 1]
    )[0]
    given = ["--trace", trace, *steps]
    json = ["--json"] if chance.random() < 0.3 else []
    words = {
        "info": lambda: ["info", trace, *steps, *json],
        "replay": lambda: ["replay", *given, *json],
        "timeline": lambda: ["replay", *given, "-o", "out.json.gz"],
        "html": lambda: ["replay", *given, "--html", "out.html", *(["--no-ranking"] if chance.random() < 0.8 else [])],
        "explain": lambda: ["explain", *given, *json],
        "rank": lambda: ["rank", *given, "--pairs", str(chance.choice((0, 0, 1))), *json],
        "whatif": lambda: ["whatif", *changed(chance, wild=wild), *given, *json],
        "pair": lambda: ["whatif", "+".join(name(chance) for _ in range(2)), *given, *json],
        "scaling": lambda: ["scaling", *given, "--workers", chance.choice(("1,2,4", "1,8", "0", "1,2,...,64")), *json,
                            *(["--gradient-mb", "1"] if chance.random() < 0.5 else [])],
        "compare": lambda: ["compare", trace, other or trace, *json],
        "sweep": lambda: ["sweep", "scale", "--set", "factor=0,0.5", "--on", "gpu", *given, *json],
        "import": lambda: ["import", trace, *steps, "-o", "out.parquet", *json],
        "explain_whatif": lambda: ["explain", *given, "--whatif", name(chance), *json],
        "compare_whatif": lambda: ["compare", trace, other or trace, "--whatif", name(chance)],
        "list": lambda: ["whatif", "--list", *json],
    }  # fmt: skip
    return words[chosen]()


def name(chance: random.Random) -> str:
    """Return the name of an optimization."""
    return str(chance.choice(optimizations()).name)


def changed(chance: random.Random, *, wild: bool) -> list[str]:
    """Return an optimization and some of its options."""
    chosen = chance.choice(optimizations())
    words = [chosen.name]
    for option in chosen.options:
        if not option.required and chance.random() < 0.6:
            continue
        if option.type is bool:
            words.append(option.flag if chance.random() < 0.5 else option.flag.replace("--", "--no-", 1))
        else:
            words += [option.flag, value(option, chance, wild=wild)]
    return words


def value(option: Any, chance: random.Random, *, wild: bool) -> str:
    """Return a value as it is typed."""
    if option.choices and not (wild and chance.random() < 0.3):
        return str(chance.choice(option.choices))
    if option.type in (int, float):
        return chance.choice(NUMBERS if wild and chance.random() < 0.5 else SANE)
    return chance.choice((*WORDS, *NUMBERS) if wild else WORDS)
