"""What the commands show on a terminal, and what they write where there is none."""

import pytest
from terminal_session import CODE, daydream_on_terminal, without_codes

WHATIF = ["whatif", "scale", "--on", "gpu", "--factor", "0.5", "--trace", "step.parquet"]
GREEN, RED, BOLD, DIM = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[2m"


@pytest.fixture
def on_terminal(folder):
    return lambda *args, columns=96, **environment: daydream_on_terminal(
        *args, folder=folder, columns=columns, **environment
    )


def test_a_terminal_gets_colours_for_what_is_better_and_what_is_worse(on_terminal, ask):
    shown = on_terminal(*WHATIF, columns=120)

    headline = shown.splitlines()[0]
    assert f" ms per step, {GREEN}1.68x\x1b[0m (90% interval " in headline, headline
    assert f"{BOLD}  what a step waits for " in shown
    changes = [line for line in shown.splitlines() if line.startswith("    ") and "\x1b[3" in line]
    assert changes
    assert {RED in line for line in changes} == {"+" in line for line in changes}


def test_who_wants_no_colours_gets_the_words_alone(on_terminal, ask):
    shown = on_terminal(*WHATIF, columns=120, NO_COLOR="1")

    assert not CODE.search(shown)
    assert "\x1b" not in shown
    assert without_codes(shown).replace("\N{RIGHTWARDS ARROW}", "->") == ask(*WHATIF).out


def test_lines_fit_the_terminal(on_terminal):
    lines = without_codes(on_terminal("rank", "--trace", "step.parquet", columns=60)).splitlines()

    assert 60 - 12 < max(map(len, lines)) <= 60


@pytest.mark.parametrize("columns", ["60", "200"])
def test_what_is_piped_does_not_depend_on_the_terminal(ask, columns):
    plain = ask(*WHATIF, COLUMNS=columns, FORCE_COLOR="1", TERM="xterm-256color").out

    assert "\x1b" not in plain
    assert plain == ask(*WHATIF).out
