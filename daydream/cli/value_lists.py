"""Lists of values as they are typed: `1,2,4,...,64`, where `...` goes on as the numbers before it do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

MOST = 10_000  # numbers that one list may mean


def numbers_of(text: str, read: Callable[[str], Fraction]) -> list[Fraction]:
    """Return the numbers of a list, each part `read` by itself.

    Raises `ValueError` with what is wrong.
    """
    found: list[Fraction] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part == "...":
            if len(found) < 2 or place + 1 == len(parts):
                raise ValueError(f"{text!r}: '...' needs two numbers before it and one after it")
        elif place and parts[place - 1] == "...":
            found += _between(found, read(part))
        else:
            found.append(read(part))
    return found


def _between(found: list[Fraction], last: Fraction) -> list[Fraction]:
    """Return what `...` leaves out and the number after it: equal steps if three show them, else factors."""
    before, one = found[-2:]
    same = len(found) > 2 and one - before == before - found[-3]
    factor = one / before if before else Fraction(0)
    by_steps = same or factor <= 0 or (factor.denominator > 1 and factor.numerator > 1)
    rising = one > before
    following: list[Fraction] = []
    while one != before and (one < last) == rising and one != last and len(following) < MOST:
        before, one = one, 2 * one - before if by_steps else one * factor
        following.append(one)
    if not following or following[-1] != last:
        raise ValueError(f"the numbers before '...' do not lead to {_typed(last)}")
    return following


def _typed(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{float(number):g}"
