from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.errors import CalcodeError
from calcode.monitor.ranks import GrowingRanks


@given(start=st.lists(st.integers(0, 9), max_size=30), later=st.lists(st.integers(0, 9), max_size=60))
def test_counts_are_those_of_a_plain_list(start: list[int], later: list[int]) -> None:
    ranks, plain = GrowingRanks(start), [float(value) for value in start]
    for value in later:
        assert ranks.insert(value) == (sum(v > value for v in plain), sum(v == value for v in plain))
        plain.append(float(value))
    assert list(ranks) == sorted(plain)
    assert len(ranks) == len(plain)


@pytest.mark.parametrize("n_distinct", [3, 10**9])
def test_counts_hold_when_blocks_are_halved_and_when_equal_values_fill_several(n_distinct: int) -> None:
    values = np.random.default_rng(0).integers(n_distinct, size=6000).astype(float)
    ranks = GrowingRanks(values[:1500])
    for t in range(1500, 6000):
        greater, equal = ranks.insert(values[t])
        if t % 97 == 0:
            assert greater == (values[:t] > values[t]).sum()
            assert equal == (values[:t] == values[t]).sum()
    np.testing.assert_array_equal(list(ranks), np.sort(values))


def test_rounding_of_a_matrix_product_makes_a_tie() -> None:
    assert GrowingRanks([0.3]).insert(0.1 + 0.2) == (0, 1)
    assert GrowingRanks([0.3]).insert(0.3 + 1e-9) == (0, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_has_no_rank_is_refused(value: float) -> None:
    with pytest.raises(CalcodeError, match="finite"):
        GrowingRanks([0.0]).insert(value)
