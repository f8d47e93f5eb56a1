"""Command lines: every command that reads a trace, with options that it has, sane ones and others."""

from functools import cache

NUMBERS = " 0 1 2 0.5 -1 1e-300 1e300 nan inf 1e18 2147483647 99999999999999999999".split(" ")
WORDS = "\x1b[31m a100 h100 cpu gpu none .* ( kernel * float16 off 1,2 nvlink".split()
SANE = ["1", "2", "4", "8", "0.5", "1.5", "10", "100"]
ASK = {  # TRACE, OTHER, NAME and CHANGED stand for what each case fills in, and how often each is asked
    "info TRACE": 4, "replay --trace TRACE": 4, "replay --trace TRACE -o out.json.gz": 2,
    "replay --trace TRACE --html out.html --no-ranking": 1, "explain --trace TRACE": 5, "rank --trace TRACE --pairs 0": 1,
    "whatif CHANGED --trace TRACE": 12, "whatif NAME+NAME --trace TRACE": 2, "scaling --trace TRACE --workers 1,2,4": 1,
    "scaling --trace TRACE --workers 1,2,...,64 --gradient-mb 1": 1, "compare TRACE OTHER": 3,
    "sweep scale --set factor=0,0.5 --on gpu --trace TRACE": 2, "import TRACE -o out.parquet": 5,
    "explain --trace TRACE --whatif NAME": 1, "compare TRACE OTHER --whatif NAME": 1, "whatif --list": 0.2,
    "x": 0.1, "collect": 0.1, "confirm NAME": 0.1, "calibrate": 0.1,
}  # fmt: skip


@cache
def optimizations():
    """Return the optimizations that ship."""
    from daydream.transforms.registry import loadable

    return loadable()[0]


def command(trace, chance, *, other=None, wild=False):
    """Return the words of one command about a trace; `wild` takes values that no option should."""
    (asked,) = chance.choices(list(ASK), list(ASK.values()))
    found = []
    for word in asked.split():
        if word == "CHANGED":
            found += changed(chance, wild=wild)
        elif "NAME" in word:
            found.append("+".join(chance.choice(optimizations()).name for _ in word.split("+")))
        else:
            found.append({"TRACE": trace, "OTHER": other or trace}.get(word, word))
    if found[0] != "compare" and "--list" not in found and chance.random() < 0.1:
        found += chance.choice((["--steps", "auto"], ["--step-marker", chance.choice(("a", "Step", ".*"))]))
    return (
        [*found, "--json"] if "-o" not in asked and "--html" not in asked and chance.random() < 0.3 else found
    )


def changed(chance, *, wild):
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


def value(option, chance, *, wild):
    """Return a value as it is typed."""
    if option.choices and not (wild and chance.random() < 0.3):
        return str(chance.choice(option.choices))
    if option.type in (int, float):
        return chance.choice(NUMBERS if wild and chance.random() < 0.5 else SANE)
    return chance.choice((*WORDS, *NUMBERS) if wild else WORDS)
