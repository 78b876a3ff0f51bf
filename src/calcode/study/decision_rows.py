"""What a method decided on every image of a setting, as arrays and as a Parquet table.

Every table and bootstrap of the study is computed from these files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray, TextArray
from calcode.baselines.protocol import Prediction
from calcode.errors import StudyError
from calcode.method.evidence import Evidence
from calcode.metrics import Outcome

if TYPE_CHECKING:
    import pyarrow

#: Key of the facts in a file's schema metadata.
FACTS_KEY = b"calcode_study"


@dataclass(frozen=True, eq=False, kw_only=True)
class DecisionRows:
    """The decisions of one method on n images.

    Attributes
    ----------
    ids : ndarray of str, shape (n,)
    labels : ndarray of shape (n,)
        Class indices, -1 outside the label space.
    sets : ndarray of bool, shape (n, K)
        For every image, deferred or not.
    accepted : ndarray of bool, shape (n,)
        Passed by the audit.
    deferred : ndarray of bool, shape (n,)
        Handed to a clinician: not accepted, or, where the method can defer, an empty set. The metrics are over the
        others, the answered images.
    p_values : ndarray of shape (n,)
        nan for a method without an audit.
    top_label, top_probability : ndarray of shape (n,)
    classes : tuple of str
    defers : bool
        Whether the method can defer at all.
    details : mapping
        What the method chose on the way.
    """

    ids: TextArray
    labels: IntArray
    sets: BoolArray
    accepted: BoolArray
    deferred: BoolArray
    p_values: FloatArray
    top_label: IntArray
    top_probability: FloatArray
    classes: tuple[str, ...]
    defers: bool
    details: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def outcome(self) -> Outcome:
        """What the metrics count."""
        return Outcome.from_arrays(sets=self.sets, answered=~self.deferred, accepted=self.accepted)

    @classmethod
    def of(cls, prediction: Prediction, test: Evidence) -> DecisionRows:
        """The decisions of a compared method.

        Parameters
        ----------
        prediction : Prediction
        test : Evidence
            The images it was made for.
        """
        empty = ~prediction.sets.any(axis=1)
        accepted = prediction.accepted
        defers = prediction.deferred is not None
        if test.ids is None:
            raise StudyError("features: the images have no ids")
        return cls(
            ids=test.ids,
            labels=test.require_labels(),
            sets=prediction.sets,
            accepted=accepted,
            # An empty set of a supported image goes to a clinician where there is one (METHOD.md 9).
            deferred=~accepted | empty if defers else ~accepted,
            p_values=np.full(len(test), np.nan) if prediction.p_values is None else prediction.p_values,
            top_label=prediction.top_label,
            top_probability=prediction.top_probability,
            classes=test.classes,
            defers=defers,
            details=dict(prediction.details),
        )


def decisions_table(variants: Mapping[str, DecisionRows]) -> pyarrow.Table:
    """One row per variant and image: id, label, set, accepted, deferred, p-value, top label and probability.

    Parameters
    ----------
    variants : mapping of str to DecisionRows
        By name; all with the same classes.
    """
    import pyarrow as pa

    classes = next(iter(variants.values())).classes
    facts = {
        "classes": list(classes),
        "variants": {
            name: {"defers": rows.defers, "details": dict(rows.details)} for name, rows in variants.items()
        },
    }
    tables = [_variant_table(name, rows) for name, rows in variants.items()]
    return pa.concat_tables(tables).replace_schema_metadata({FACTS_KEY: json.dumps(facts).encode()})


def _variant_table(name: str, rows: DecisionRows) -> pyarrow.Table:
    import pyarrow as pa

    names = np.array([*rows.classes, ""], dtype=object)
    offsets = np.concatenate([[0], np.cumsum(rows.sets.sum(axis=1))]).astype(np.int32)
    members = pa.array(names[np.nonzero(rows.sets)[1]], type=pa.string())
    outside = rows.labels < 0
    return pa.table(
        {
            "variant": pa.array([name] * len(rows), type=pa.string()),
            "id": pa.array(rows.ids.tolist(), type=pa.string()),
            "label": pa.array(names[rows.labels], type=pa.string(), mask=outside),
            "set": pa.ListArray.from_arrays(pa.array(offsets), members),
            "accepted": pa.array(rows.accepted),
            "deferred": pa.array(rows.deferred),
            "p_value": pa.array(rows.p_values, mask=np.isnan(rows.p_values)),
            "top_label": pa.array(names[rows.top_label], type=pa.string()),
            "top_probability": pa.array(rows.top_probability),
        }
    )


def decisions_of(table: pyarrow.Table) -> dict[str, DecisionRows]:
    """What `decisions_table` was given, by variant, in the order of the file."""
    facts = json.loads(table.schema.metadata[FACTS_KEY])
    classes = tuple(facts["classes"])
    column = np.array(table["variant"].to_pylist(), dtype=object)
    return {
        name: _rows_of(table.filter(column == name), classes, variant)
        for name, variant in facts["variants"].items()
    }


def _rows_of(table: pyarrow.Table, classes: tuple[str, ...], variant: Mapping[str, Any]) -> DecisionRows:
    import pyarrow as pa
    import pyarrow.compute as pc

    value_set = pa.array(list(classes))
    members = table["set"].combine_chunks()
    sets = np.zeros((table.num_rows, len(classes)), dtype=bool)
    columns = pc.index_in(members.flatten(), value_set=value_set).to_numpy(zero_copy_only=False)
    sets[pc.list_parent_indices(members).to_numpy(zero_copy_only=False), columns] = True

    def indices(name: str) -> IntArray:
        found = pc.fill_null(pc.index_in(table[name], value_set=value_set), -1)
        # A missing label must not be mistaken for a class of that index.
        known = table[name].is_valid().to_numpy()
        return np.where(known, found.to_numpy(), -1).astype(np.int64)

    p_values = pc.fill_null(table["p_value"].cast(pa.float64()), float("nan")).to_numpy()
    return DecisionRows(
        ids=np.array(table["id"].to_pylist(), dtype=np.str_),
        labels=indices("label"),
        sets=sets,
        accepted=table["accepted"].to_numpy(),
        deferred=table["deferred"].to_numpy(),
        p_values=p_values,
        top_label=indices("top_label"),
        top_probability=table["top_probability"].to_numpy(),
        classes=classes,
        defers=bool(variant["defers"]),
        details=variant["details"],
    )
