"""Decisions of a method on every image of a setting, as arrays and as a Parquet table.

All tables and bootstraps of the study are computed from these files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray, TextArray
from calcode.baselines.protocol import Prediction
from calcode.baselines.registry import METHODS
from calcode.errors import StudyError
from calcode.method.evidence import Evidence
from calcode.metrics import Outcome, Summary, summarize_sets
from calcode.study.cohorts import SettingCohorts
from calcode.study.jobs import Job, job
from calcode.study.methods import at_point
from calcode.study.specification import Combination, Point, Study
from calcode.study.tables import Row

if TYPE_CHECKING:
    import pyarrow

#: Key of the facts in the schema metadata of a file.
_FACTS = b"calcode_study"


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodDecisions:
    """The decisions of one method on n images.

    Attributes
    ----------
    ids : ndarray of str, shape (n,)
    labels : ndarray of shape (n,)
        Class indices, -1 outside the label space.
    sets : ndarray of bool, shape (n, K)
        For every image, including deferred ones.
    accepted : ndarray of bool, shape (n,)
        Accepted by the audit.
    deferred : ndarray of bool, shape (n,)
        Handed to a clinician: not accepted or, if the method can defer, with an empty set. The others are answered.
    p_values : ndarray of shape (n,)
        nan if the method has no audit.
    top_label, top_probability : ndarray of shape (n,)
    classes : tuple of str
    defers : bool
        Whether the method can defer at all.
    details : mapping
        Choices that the method made on the way.
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

    def __getitem__(self, images: IntArray | BoolArray) -> MethodDecisions:
        """The decisions on some of the images."""
        arrays: dict[str, Any] = {
            entry.name: value[images]
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), np.ndarray)
        }
        return replace(self, **arrays)

    @property
    def outcome(self) -> Outcome:
        """The outcome for the paired bootstrap."""
        return Outcome.from_arrays(sets=self.sets, answered=~self.deferred, accepted=self.accepted)

    def summary(self, *, min_n: int) -> Summary:
        """All metrics of METHOD.md 11.

        Parameters
        ----------
        min_n : int
            Fewest answered images with which a class can be the worst class.
        """
        return summarize_sets(
            self.outcome,
            self.labels,
            classes=self.classes,
            top_label=self.top_label,
            top_probability=self.top_probability,
            min_n=min_n,
        )


def method_job(
    study: Study,
    method: str,
    place: Combination,
    *,
    point: Point | None = None,
    seed: int | None = None,
    resplit: int | None = None,
    out_of_space: bool = False,
) -> Job:
    """The job that decides on a setting's target, or on its images beyond the label space.

    Parameters
    ----------
    study : Study
        Its first operating point and first seed are the defaults.
    method : str
        Name in the registry.
    place : (Setting, Backbone)
    point : Point, optional
    seed, resplit : int, optional
    out_of_space : bool
    """
    chosen = study.point if point is None else point
    options = {"method": method, **chosen.model_dump(exclude={"name"}), "seed": study.seed if seed is None else seed}
    what = f"{method}-out-of-space" if out_of_space else method
    options |= {"out_of_space": True} if out_of_space else {}
    return job(f"{__name__}:decide", what, place, options, resplit=resplit)


def decide(cohorts: SettingCohorts, options: Mapping[str, Any]) -> dict[str, MethodDecisions]:
    """Decisions of a method on the target, or on the images outside the label space that are kept apart."""
    images = cohorts.out_of_space if options.get("out_of_space") else cohorts.target
    assert images is not None, "planned only where a setting keeps images apart"
    method = at_point(METHODS[options["method"]], options)
    prediction = method.predict(
        cohorts.roles, images.evidence, miscoverage=options["miscoverage"], random_state=options["seed"]
    )
    return {method.record.name: decisions_from(prediction, images.evidence)}


def decisions_from(prediction: Prediction, test: Evidence) -> MethodDecisions:
    """The decisions of a compared method on the images of its prediction."""
    accepted = prediction.accepted
    defers = prediction.deferred is not None
    if test.ids is None:
        raise StudyError("features: the images have no ids")
    return MethodDecisions(
        ids=test.ids,
        labels=test.require_labels(),
        sets=prediction.sets,
        accepted=accepted,
        # If the method can defer, an empty set of a supported image goes to a clinician (METHOD.md 9).
        deferred=~accepted | ~prediction.sets.any(axis=1) if defers else ~accepted,
        p_values=np.full(len(test), np.nan) if prediction.p_values is None else prediction.p_values,
        top_label=prediction.top_label,
        top_probability=prediction.top_probability,
        classes=test.classes,
        defers=defers,
        details=dict(prediction.details),
    )


def to_arrow(variants: Mapping[str, MethodDecisions]) -> pyarrow.Table:
    """One row per variant and image: id, label, set, accepted, deferred, p-value, top label and probability.

    Parameters
    ----------
    variants : mapping of str to MethodDecisions
        By name; all with the same classes.
    """
    import pyarrow as pa

    facts = {
        "classes": list(next(iter(variants.values())).classes),
        "variants": {name: {"defers": rows.defers, "details": dict(rows.details)} for name, rows in variants.items()},
    }
    tables = []
    for name, rows in variants.items():
        names = np.array([*rows.classes, ""], dtype=object)
        offsets = np.concatenate([[0], np.cumsum(rows.sets.sum(axis=1))]).astype(np.int32)
        members = pa.array(names[np.nonzero(rows.sets)[1]], type=pa.string())
        columns = {
            "variant": pa.array([name] * len(rows), type=pa.string()),
            "id": pa.array(rows.ids.tolist(), type=pa.string()),
            "label": pa.array(names[rows.labels], type=pa.string(), mask=rows.labels < 0),
            "set": pa.ListArray.from_arrays(pa.array(offsets), members),
            "accepted": pa.array(rows.accepted),
            "deferred": pa.array(rows.deferred),
            "p_value": pa.array(rows.p_values, mask=np.isnan(rows.p_values)),
            "top_label": pa.array(names[rows.top_label], type=pa.string()),
            "top_probability": pa.array(rows.top_probability),
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables).replace_schema_metadata({_FACTS: json.dumps(facts).encode()})


def rows_table(rows: Sequence[Row]) -> pyarrow.Table:
    """Measured rows as a table; a cell that a row lacks becomes a missing value."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def from_arrow(table: pyarrow.Table) -> dict[str, MethodDecisions]:
    """The decisions that `to_arrow` received, by variant, in file order."""
    import pyarrow.compute as pc

    facts = json.loads(table.schema.metadata[_FACTS])
    classes = tuple(facts["classes"])
    index = {name: i for i, name in enumerate(classes)}
    decisions = {}
    for name, variant in facts["variants"].items():
        own = table.filter(pc.equal(table["variant"], name)).to_pydict()
        sets = [[label in members for label in classes] for members in own["set"]]
        decisions[name] = MethodDecisions(
            ids=np.array(own["id"], dtype=np.str_),
            labels=np.array([index.get(label, -1) for label in own["label"]], dtype=np.int64),
            sets=np.array(sets, dtype=bool).reshape(len(sets), len(classes)),
            accepted=np.array(own["accepted"], dtype=bool),
            deferred=np.array(own["deferred"], dtype=bool),
            p_values=np.array(own["p_value"], dtype=np.float64),
            top_label=np.array([index[label] for label in own["top_label"]], dtype=np.int64),
            top_probability=np.array(own["top_probability"], dtype=np.float64),
            classes=classes,
            defers=bool(variant["defers"]),
            details=variant["details"],
        )
    return decisions
