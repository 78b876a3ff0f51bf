"""Numbers and lists as words: commands and pages write all figures with these functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.method.decisions import WORST_CLASS_MIN
from calcode.metrics.intervals import Estimate

#: Keeps a number and its unit on one line.
NBSP = "\u00a0"
MINUS = "\u2212"
UNDEFINED = "undefined"
#: Fewer examples than this are called few: a Wilson interval at 0.95 is then wider than 0.18.
FEW = WORST_CLASS_MIN


def percent(share: float, *, digits: int = 1) -> str:
    """A share in percent. 0 is shown only for zero, and 100 only for one.

    Examples
    --------
    >>> [percent(value).replace(NBSP, " ") for value in (0.0, 0.0001, 0.957, 0.9999, 1.0)]
    ['0.0 %', '<0.1 %', '95.7 %', '>99.9 %', '100.0 %']
    """
    if math.isnan(share):
        return UNDEFINED
    step = 10.0**-digits
    shown = f"{100 * share:.{digits}f}"
    if share > 0 and float(shown) == 0.0:
        shown = f"<{step:.{digits}f}"
    elif share < 1 and float(shown) == 100.0:
        shown = f">{100 - step:.{digits}f}"
    return f"{shown}{NBSP}%"


def short_percent(share: float) -> str:
    """A share in percent with no more digits than it needs: levels, targets, axis ticks.

    Examples
    --------
    >>> short_percent(0.95).replace(NBSP, " "), short_percent(0.925).replace(NBSP, " ")
    ('95 %', '92.5 %')
    """
    return f"{round(100 * share, 4):g}{NBSP}%"


def percent_interval(estimate: Estimate) -> str:
    """The interval alone, such as 92.6 to 94.7; empty if it is undefined."""
    if math.isnan(estimate.low):
        return ""
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"


def percent_estimate(estimate: Estimate) -> str:
    """A share with its interval."""
    interval = percent_interval(estimate)
    return f"{percent(estimate.value)} ({interval})" if interval else percent(estimate.value)


def number(value: float, *, digits: int = 2) -> str:
    """A number with a fixed number of decimals.

    Examples
    --------
    >>> number(3.1234), number(math.inf), number(math.nan)
    ('3.12', 'infinite', 'undefined')
    """
    if math.isnan(value):
        return UNDEFINED
    return "infinite" if math.isinf(value) else f"{value:.{digits}f}"


def signed(value: float, *, digits: int = 2) -> str:
    """A difference with its sign; without a sign if it rounds to zero.

    Examples
    --------
    >>> [signed(value).replace(MINUS, "-") for value in (0.1234, -0.1, 0.0, -0.0004)]
    ['+0.12', '-0.10', '0.00', '0.00']
    """
    if math.isnan(value):
        return UNDEFINED
    shown = f"{abs(value):.{digits}f}"
    sign = "" if float(shown) == 0.0 else "+" if value > 0 else MINUS
    return f"{sign}{shown}"


def signed_points(value: float) -> str:
    """A difference of shares, in percentage points.

    Examples
    --------
    >>> signed_points(0.0123).replace(NBSP, " "), signed_points(math.nan)
    ('+1.2 points', 'undefined')
    """
    return UNDEFINED if math.isnan(value) else f"{signed(100 * value, digits=1)}{NBSP}points"


def count(value: int) -> str:
    """A whole number with separators.

    Examples
    --------
    >>> count(12284)
    '12,284'
    """
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """A number with its noun, in the plural if needed.

    Examples
    --------
    >>> counted(1, "image"), counted(2004, "image"), counted(2, "class")
    ('1 image', '2,004 images', '2 classes')
    """
    plural = f"{noun.removesuffix('is')}es" if noun.endswith("s") else f"{noun}s"
    return f"{count(value)} {noun if value == 1 else plural}"


def listed(words: Sequence[str], *, last: str = "and") -> str:
    """Words as an English list.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed(["a", "b"], last="or"), listed(["a"])
    ('a, b and c', 'a or b', 'a')
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def sentence_case(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
