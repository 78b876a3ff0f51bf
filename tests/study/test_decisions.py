from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calcode.study.decisions import MethodDecisions, from_arrow, to_arrow


def rows_with(generator: np.random.Generator, n: int, *, k: int, defers: bool) -> MethodDecisions:
    return MethodDecisions(
        ids=np.array([f"i{i}" for i in range(n)], dtype=np.str_),
        labels=generator.integers(-1, k, size=n),
        sets=generator.random((n, k)) < 0.4,
        accepted=generator.random(n) < 0.8,
        deferred=generator.random(n) < 0.5,
        p_values=generator.random(n) if defers else np.full(n, np.nan),
        top_label=generator.integers(0, k, size=n),
        top_probability=generator.random(n),
        classes=tuple(f"c{i}" for i in range(k)),
        defers=defers,
        details={"bandwidth": 0.25, "diagnostic": "msp"},
    )


@given(st.integers(0, 10_000), st.integers(0, 12), st.integers(2, 5))
def test_what_is_stored_reads_back(seed, n, k) -> None:
    generator = np.random.default_rng(seed)
    given_rows = {"a": rows_with(generator, n, k=k, defers=True), "b": rows_with(generator, n + 1, k=k, defers=False)}
    found = from_arrow(to_arrow(given_rows))
    assert list(found) == ["a", "b"]
    for name, rows in given_rows.items():
        for field in ("ids", "labels", "sets", "accepted", "deferred", "top_label", "top_probability"):
            np.testing.assert_array_equal(getattr(found[name], field), getattr(rows, field), err_msg=field)
        np.testing.assert_array_equal(found[name].p_values, rows.p_values)
        assert (found[name].defers, found[name].details) == (rows.defers, rows.details)
        assert found[name].classes == rows.classes
