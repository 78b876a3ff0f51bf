"""Numbers as words: nothing is rounded into a claim that is not true."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.metrics.intervals import proportion
from calcode.metrics.wording import (
    NBSP,
    counted,
    listed,
    number,
    percent,
    percent_estimate,
    percent_interval,
    short_percent,
)


@given(st.floats(0, 1), st.integers(0, 2))
def test_only_nothing_is_zero_and_only_everything_is_a_hundred(share: float, digits: int) -> None:
    shown = percent(share, digits=digits).removesuffix(f"{NBSP}%")
    if shown[0] in "<>":
        assert 0 < share < 1
    else:
        assert (float(shown) == 0) == (share == 0)
        assert (float(shown) == 100) == (share == 1)
        assert abs(float(shown) - 100 * share) <= 0.5 * 10.0**-digits + 1e-9


@pytest.mark.parametrize("value", [math.nan])
def test_undefined_is_said(value: float) -> None:
    assert percent(value) == number(value) == "undefined"


def test_estimates_carry_their_interval() -> None:
    assert percent_estimate(proportion(19, 20)).replace(NBSP, " ") == "95.0 % (76.4 to 99.1)"
    assert percent_estimate(proportion(0, 0)) == "undefined"
    assert percent_interval(proportion(0, 0)) == ""


def test_words() -> None:
    assert counted(0, "image") == "0 images"
    assert counted(1, "class") == "1 class"
    assert counted(2, "diagnosis") == "2 diagnoses"
    assert listed([]) == ""
    assert short_percent(0.0025).replace(NBSP, " ") == "0.25 %"
