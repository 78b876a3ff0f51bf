from __future__ import annotations

import numpy as np
import pytest

from calcode.datasets import ImageListing
from calcode.datasets.listing import joined
from calcode.errors import DatasetError


def listing(**changes: object) -> ImageListing:
    values: dict[str, object] = {
        "dataset": "mine",
        "classes": ("mel", "nv"),
        "ids": np.array(["a", "b", "c", "d"]),
        "paths": np.array(["a.png", "", "c.png", "d.png"]),
        "label_names": np.array(["mel", "scc", "", "nv"]),
        "source_labels": np.array(["MEL", "SCC", "", "NV"]),
        "groups": np.array(["p", "p", "", "q"]),
        "metadata": {"age": np.array([1.0, np.nan, 3.0, 4.0]), "sex": np.array(["male", "", "", "female"])},
        "outside": ("scc",),
    }
    return ImageListing(**(values | changes))  # type: ignore[arg-type]


def test_inside_outside_and_unlabelled_are_told_apart() -> None:
    one = listing()
    assert one.labels.tolist() == [0, -1, -1, 1]
    assert one.counts == {"mel": 1, "nv": 1, "scc": 1, "": 1}
    assert one.unknown_labels == ()
    assert listing(outside=()).unknown_labels == ("scc",)
    assert "2 in the label space, 1 outside, 1 without" in repr(one)


def test_selection_keeps_every_column_together() -> None:
    part = listing(roles=np.array(["test", "gate", "test", ""]))[np.array([3, 0])]
    columns = {name: values.tolist() for name, values in part.columns().items()}
    assert columns == {
        "id": ["d", "a"],
        "path": ["d.png", "a.png"],
        "label_name": ["nv", "mel"],
        "role": ["", "test"],
        "group": ["q", "p"],
        "source_label": ["NV", "MEL"],
        "age": [4.0, 1.0],
        "sex": ["female", "male"],
    }


def test_the_table_has_nulls_where_something_is_missing() -> None:
    table = listing().to_table()
    assert table["path"].to_pylist() == ["a.png", None, "c.png", "d.png"]
    assert table["label_name"].to_pylist() == ["mel", "scc", None, "nv"]
    assert table["age"].to_pylist() == [1.0, None, 3.0, 4.0]
    assert table["dataset"].to_pylist() == ["mine"] * 4


def test_restricting_moves_labels_outside() -> None:
    one = listing().restrict(["nv"])
    assert one.labels.tolist() == [-1, -1, -1, 0]
    assert one.unknown_labels == ()
    with pytest.raises(DatasetError, match="classes: .*'df'"):
        listing().restrict(["df"])


def test_joining_fills_what_one_lacks() -> None:
    other = listing(dataset="other", ids=np.array(["e", "f", "g", "h"]), metadata={"fitzpatrick": np.arange(4.0)})
    both = joined([listing(), other], dataset="both", classes=["mel", "nv"])
    assert len(both) == 8
    np.testing.assert_array_equal(both.metadata["fitzpatrick"], [np.nan] * 4 + [0, 1, 2, 3])
    assert both.metadata["sex"].tolist() == ["male", "", "", "female", "", "", "", ""]
    assert np.isnan(both.metadata["age"][4:]).all()
    assert both.to_table()["dataset"].to_pylist() == ["mine"] * 4 + ["other"] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": np.array(["p"])}, "group: shape"),
        ({"metadata": {"age": np.zeros(2)}}, "age: shape"),
        ({"classes": ("mel", "mel")}, "classes: "),
        ({"classes": ()}, "classes: "),
        ({"ids": np.arange(4)}, "id: .* text needed"),
        ({"roles": np.array(["test"])}, "role: shape"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        listing(**changes)
