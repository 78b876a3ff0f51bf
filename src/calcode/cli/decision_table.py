"""Decisions read back from a file, joined with the true labels of a feature file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import AnyArray, IntArray
from calcode.cli.blocks import Choice, Collector, Judged
from calcode.cohorts import decision_facts, read_decisions
from calcode.cohorts.decision_format import ACTION_WORDS, REASON_WORDS, THRESHOLD_PREFIX
from calcode.errors import FeatureFileError
from calcode.method.decisions import Decisions, Reason

if TYPE_CHECKING:
    import pyarrow


def judged_file(path: Path, choice: Choice, *, columns: Sequence[str] | None) -> Judged:
    """Decisions of a file with the labels of the same images.

    Parameters
    ----------
    path : Path
        Decision file.
    choice : Choice
        The images whose labels are known; decisions on others are left out where a role or condition was given,
        and an error where not.
    columns : sequence of str or None
        Metadata columns to keep.
    """
    table = read_decisions(path)
    if "id" not in table.column_names:
        raise FeatureFileError(
            f"{path}: has no column 'id', so its rows cannot be matched with labels; decide again on images with ids"
        )
    decisions = decisions_of(table)
    collector = Collector(choice.features.path)
    for block in choice.blocks(classes=decisions.classes, columns=columns):
        collector.add(block)
    rows = _matched(decisions, collector.ids, path=path, choice=choice)
    known = rows >= 0
    return Judged(
        decisions=decisions[known],
        labels=collector.labels[rows[known]],
        metadata={name: values[rows[known]] for name, values in collector.metadata.items()},
    )


def _matched(decisions: Decisions, ids: AnyArray, *, path: Path, choice: Choice) -> IntArray:
    """Row of every decided image among the labelled ones, -1 where it is not chosen; shape (n,)."""
    row_of = {name: row for row, name in enumerate(ids.tolist())}
    assert decisions.ids is not None
    rows = np.array([row_of.get(name, -1) for name in decisions.ids.tolist()], dtype=np.int64)
    narrowed = choice.role is not None or choice.where is not None
    if not narrowed and (rows < 0).any():
        stranger = decisions.ids[int((rows < 0).argmax())]
        raise FeatureFileError(
            f"{choice.features.path}: column 'id' lacks {int((rows < 0).sum())} images of {path} (first: "
            f"{str(stranger)!r}); give the feature file that was decided on"
        )
    if not (rows >= 0).any():
        raise FeatureFileError(
            f"{path}: none of its images is in {choice.described}; check --role and --where"
        )
    return rows


def decisions_of(table: pyarrow.Table) -> Decisions:
    """The table of a decision file as `Decisions`.

    A file holds released sets only. The set of an accepted image follows from them: it was released, empty, or full
    (the reason says which). Sets of unsupported images, scores and first-ranked classes are not in a file: the sets
    are empty here, the scores nan, the first-ranked class 0 with probability 0.
    """
    facts = decision_facts(table)
    classes = tuple(facts["classes"])
    n = table.num_rows
    action = _codes(table, "action", ACTION_WORDS)
    reason = _codes(table, "reason", REASON_WORDS)
    sets = np.zeros((n, len(classes)), dtype=bool)
    index = {name: i for i, name in enumerate(classes)}
    for row, names in enumerate(table["released_set"].to_pylist()):
        sets[row, [index[name] for name in names]] = True
    sets[reason == Reason.FULL_SET] = True
    labels = [-1 if name is None else index[name] for name in table["label"].to_pylist()]
    return Decisions(
        action=action,
        reason=reason,
        label=np.array(labels, dtype=np.int64),
        sets=sets,
        localized_sets=sets.copy(),
        p_audit=table["p_audit"].to_numpy().copy(),
        threshold=np.column_stack([table[THRESHOLD_PREFIX + name].to_numpy() for name in classes]),
        scores=np.full((n, len(classes)), np.nan),
        top_label=np.zeros(n, dtype=np.int64),
        top_probability=np.zeros(n),
        ids=np.array(table["id"].to_pylist(), dtype=np.str_),
        classes=classes,
        model_digest=facts["model_digest"],
        promises=tuple(facts["promises"]),
    )


def _codes(
    table: pyarrow.Table, column: str, words: Sequence[str]
) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    return np.array([words.index(word) for word in table[column].to_pylist()], dtype=np.int8)
