"""Read decision files; refuse those that are damaged, of another program, or contradictory."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.cohorts import decisions as layout
from calcode.cohorts.parquet import RowReader, damage_named
from calcode.errors import FeatureFileError
from calcode.files import parsed_json, require_regular
from calcode.method.artifact import has_type
from calcode.method.decisions import Decisions, Reason

if TYPE_CHECKING:
    import pyarrow

_FACTS = {"format": str, "version": int, "model_digest": str, "classes": tuple[str, ...], "promises": tuple[str, ...]}
_FIXED = ("action", "reason", "label", "released_set", "p_audit", "model_digest")
#: An apostrophe that was added to text that a spreadsheet would run as a formula.
_MADE_TEXT = r"^'([=+\-@\t\r'])"
#: A site's threshold may be below zero by this much.
_SLACK = 1e-9


def read_decisions(path: str | os.PathLike[str]) -> pyarrow.Table:
    """Read a decision file as the table that was written, and check it.

    A CSV file has everything except the model's promises.

    Parameters
    ----------
    path : path-like
        Ends in `.parquet` or `.csv`.

    Raises
    ------
    FeatureFileError
        If the file is missing, truncated, of another program, newer than this version, or contradictory.
    """
    file = require_regular(path)
    if file.suffix not in layout.SUFFIXES:
        raise FeatureFileError(f"{file}: decisions are read from .parquet or .csv, not from {file.suffix!r}")
    with damage_named(file):
        if file.suffix == ".csv":
            table = _from_csv(file)
        else:
            with closing(RowReader(file)) as reader:
                reader.columns = reader.schema.names
                table = reader.table(0, reader.n_rows)
            try:
                facts = decision_facts(table)
            except ValueError as error:
                raise FeatureFileError(f"{file}: {error}") from error
            if facts["format"] != layout.FORMAT:
                raise FeatureFileError(f"{file}: holds {facts['format']!r}, not decisions")
            if facts["version"] > layout.VERSION:
                raise FeatureFileError(
                    f"{file}: written in version {facts['version']} of the decision format and this is version "
                    f"{layout.VERSION}; install a newer calcode"
                )
            names = table.schema.names
            known = {key: facts[key] for key in ("classes", "model_digest", "promises")}
            expected = layout.decision_schema(names, **known)
            if names != expected.names or table.schema.types != expected.types:
                raise FeatureFileError(f"{file}: columns {names} are not those of decisions: {expected.names}")
            table = table.replace_schema_metadata(expected.metadata)
        return _checked_content(table, file=file)


def decision_facts(table: pyarrow.Table) -> dict[str, Any]:
    """The schema metadata of a decision table: model digest, classes, promises, format version."""
    text = (table.schema.metadata or {}).get(layout.METADATA_KEY)
    if text is None:
        raise FeatureFileError(
            "no 'calcode' in its schema metadata, so it is no table of decisions; make one with 'calcode decide'"
        )
    facts = parsed_json(text, source="decisions: schema metadata")
    wrong = not isinstance(facts, dict) or [
        name for name, kind in _FACTS.items() if not has_type(facts.get(name), kind)
    ]
    if wrong:
        raise FeatureFileError(f"decisions: schema metadata: {wrong} are missing or of another type")
    if not 0 < len(set(facts["classes"])) == len(facts["classes"]):
        raise FeatureFileError("decisions: schema metadata: the classes are not different names")
    return dict(facts)


def decisions_from(table: pyarrow.Table) -> Decisions:
    """Convert the table of a decision file to `Decisions`.

    A file has only released sets. The set of an accepted image follows from them: it was released, empty, or full
    (the reason says which). Sets of unsupported images, scores and first-ranked classes are not in a file. In the
    result these sets are empty, the scores nan, and the first-ranked class is 0 with probability 0.

    Parameters
    ----------
    table : pyarrow.Table
        From `read_decisions`.
    """
    facts = decision_facts(table)
    classes = tuple(facts["classes"])
    n = table.num_rows
    codes = {
        name: np.array([words.index(word) for word in table[name].to_pylist()], dtype=np.int8)
        for name, words in (("action", layout.ACTION_WORDS), ("reason", layout.REASON_WORDS))
    }
    index: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    sets = np.zeros((n, len(classes)), dtype=bool)
    for row, names in enumerate(table["released_set"].to_pylist()):
        sets[row, [index[name] for name in names]] = True
    sets[codes["reason"] == Reason.FULL_SET] = True
    return Decisions(
        action=codes["action"],
        reason=codes["reason"],
        label=np.array([index.get(name, -1) for name in table["label"].to_pylist()], dtype=np.int64),
        sets=sets,
        localized_sets=sets.copy(),
        p_audit=table["p_audit"].to_numpy().copy(),
        threshold=np.column_stack([table[layout.THRESHOLD_PREFIX + name].to_numpy() for name in classes]),
        scores=np.full((n, len(classes)), np.nan),
        top_label=np.zeros(n, dtype=np.int64),
        top_probability=np.zeros(n),
        known_group=table["known_group"].to_numpy().copy() if "known_group" in table.column_names else None,
        ids=np.array(table["id"].to_pylist(), dtype=np.str_) if "id" in table.column_names else None,
        classes=classes,
        model_digest=facts["model_digest"],
        promises=tuple(facts["promises"]),
    )


def _from_csv(file: Path) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    kinds = dict.fromkeys(("id", "action", "reason", "label", "released_set", "model_digest"), pa.string())
    try:
        text = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={**kinds, "p_audit": pa.float64(), "row": pa.int64(), "known_group": pa.bool_()},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise FeatureFileError(f"{file}: truncated, or not a CSV file of decisions ({error})") from error
    missing = [name for name in _FIXED if name not in text.column_names]
    if missing or not {"id", "row"} & set(text.column_names):
        raise FeatureFileError(
            f"{file}: lacks the columns {missing or ['id or row']} of decisions, it has {text.column_names}; make them "
            "with 'calcode decide'"
        )
    for i, field in enumerate(text.schema):
        if pa.types.is_string(field.type):
            text = text.set_column(i, field, pc.replace_substring_regex(text[field.name], _MADE_TEXT, r"\1"))
    digests = text["model_digest"].fill_null("").unique().to_pylist()
    whole = max(digests, key=len, default="")
    if len(digests) > 1 and all(whole.startswith(digest) for digest in digests):
        raise FeatureFileError(f"{file}: truncated in its last line; run 'calcode decide' again")
    if len(digests) > 1:
        raise FeatureFileError(f"{file}: decisions of {len(digests)} models in one file: {digests[:3]}")
    others = [name for name in text.column_names if name not in (*_FIXED, "id", "row", "known_group")]
    classes = [name.removeprefix(layout.THRESHOLD_PREFIX) for name in others]
    schema = layout.decision_schema(text.column_names, classes=classes, model_digest=whole)
    if schema.names != text.column_names:
        raise FeatureFileError(f"{file}: columns {text.column_names} are not those of decisions: {schema.names}")
    joined = text["released_set"].fill_null("")
    no_names = pa.scalar([], pa.list_(pa.string()))
    sets = pc.if_else(pc.equal(joined, ""), no_names, pc.split_pattern(joined, layout.SET_SEPARATOR))
    plain = {name: text[name] for name in text.column_names} | {"released_set": sets}
    columns = [plain[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _checked_content(table: pyarrow.Table, *, file: Path) -> pyarrow.Table:
    """Return the table; refuse impossible statements about an image (the error names the first such row).

    Dictionary columns get back the words with which they were written: files keep only the words that occur.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    facts = decision_facts(table)
    for name, words in (
        ("action", layout.ACTION_WORDS),
        ("reason", layout.REASON_WORDS),
        ("model_digest", (facts["model_digest"],)),
    ):
        index, written = table.schema.get_field_index(name), table[name].combine_chunks().cast(pa.string())
        codes = pc.index_in(written, value_set=pa.array(words))
        if codes.null_count:
            foreign = written.filter(codes.is_null()).unique().to_pylist()
            raise FeatureFileError(f"{file}: column {name!r} holds {foreign[:5]}, not one of {list(words)}")
        field = table.schema.field(index)
        column = pa.DictionaryArray.from_arrays(codes.cast(field.type.index_type), pa.array(words))
        table = table.set_column(index, field, column)
    released = table["released_set"].combine_chunks()
    named = pc.index_in(released.flatten(), value_set=pa.array(facts["classes"]))
    missing = [name for name in table.column_names if name != "label" and table[name].null_count]
    if missing or named.null_count:
        raise FeatureFileError(
            f"{file}: column {missing[0] if missing else 'released_set'!r} has missing values, or names that are not "
            f"among the classes {sorted(facts['classes'])}"
        )
    sizes = released.value_lengths().to_numpy()
    action, reason = (table[name].cast("string").to_numpy() for name in ("action", "reason"))
    label = pc.index_in(table["label"], value_set=pa.array(facts["classes"])).fill_null(-1).to_numpy()
    sets = np.zeros((table.num_rows, len(facts["classes"])), dtype=np.int64)
    np.add.at(sets, (released.value_parent_indices().to_numpy(), named.to_numpy()), 1)
    p_audit = table["p_audit"].to_numpy()
    thresholds = np.array([table[layout.THRESHOLD_PREFIX + name].to_numpy() for name in facts["classes"]])
    faults = {
        "the action and the size of its released set contradict each other": (
            ((action == "defer") & (sizes > 0))
            | ((action == "label") & (sizes != 1))
            | ((action == "set") & (sizes < 2))
        ),
        "the released set names a class twice": (sets > 1).any(axis=1),
        "the label is not that of the released set": np.where(
            action == "label", label != sets.argmax(axis=1), table["label"].is_valid().to_numpy()
        ),
        "the action and its reason contradict each other": (action == "defer") == (reason == "none"),
        "p_audit is no share": ~((p_audit >= 0.0) & (p_audit <= 1.0)),
        "a threshold is NaN or negative": ~(thresholds >= -_SLACK).all(axis=0),
    }
    for fault, wrong in faults.items():
        if wrong.any():
            row = int(wrong.argmax())
            raise FeatureFileError(f"{file}: row {row}: {fault}; the file was changed after it was written")
    who = table.column_names[0]
    if pc.count_distinct(table[who]).as_py() != table.num_rows:
        raise FeatureFileError(layout.TWICE.format(file, who))
    return table
