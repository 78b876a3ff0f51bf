"""Decision files: what was decided on every image, as an Arrow table, a Parquet file or a CSV file.

Only released sets are written: a deferred image shows none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode.cohorts.parquet import HashArray, RowReader, damage_named, text_hashes
from calcode.errors import FeatureFileError, MismatchError
from calcode.files import canonical_json, parsed_json, replacing_together, require_regular
from calcode.method.artifact import has_type
from calcode.method.decisions import Action, Decisions, Reason

if TYPE_CHECKING:
    import pyarrow

_SUFFIXES = (".parquet", ".csv")
#: What the columns `action` and `reason` say.
ACTION_WORDS = tuple(action.name.lower() for action in Action)
REASON_WORDS = tuple(reason.name.lower() for reason in Reason)
#: Columns of thresholds: this, then the name of the class.
THRESHOLD_PREFIX = "threshold_"
#: Between the names of a set in CSV.
SET_SEPARATOR = ";"
#: A spreadsheet runs a cell that begins with one of these; in CSV an apostrophe before it makes it text.
_RUNS = r"^([=+\-@\t\r'])"
_MADE_TEXT = r"^'([=+\-@\t\r'])"
#: The one key of the schema metadata.
_METADATA_KEY = b"calcode"
_FORMAT = "calcode-decisions"
_VERSION = 1
_FACTS = {"format": str, "version": int, "model_digest": str, "classes": tuple[str, ...], "promises": tuple[str, ...]}
#: A site's threshold may be this far below zero.
_SLACK = 1e-9
_TWICE = "{}: column {!r} names an image twice; keep one decision for each"
_FIXED = ("action", "reason", "label", "released_set", "p_audit", "model_digest")


def decision_schema(
    columns: Collection[str], *, classes: Sequence[str], model_digest: str, promises: Sequence[str] = ()
) -> pyarrow.Schema:
    """The Arrow schema of decisions by one model, its metadata included; `columns` says whether there are ids."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())  # the index type that every reader of Parquet gives
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        "model_digest": model_digest,
        "classes": list(classes),
        "promises": list(promises),
    }
    return pa.schema(
        [
            ("id", pa.string()) if "id" in columns else ("row", pa.int64()),
            ("action", words),
            ("reason", words),
            ("label", pa.string()),
            ("released_set", pa.list_(pa.field("element", pa.string()))),  # as Parquet names it
            ("p_audit", pa.float64()),
            *([("known_group", pa.bool_())] if "known_group" in columns else []),
            *((THRESHOLD_PREFIX + name, pa.float64()) for name in classes),
            ("model_digest", words),
        ],
        metadata={_METADATA_KEY: canonical_json(facts).encode()},
    )


def decisions_table(
    decisions: Decisions, *, first_row: int = 0, ids: pyarrow.ChunkedArray | None = None
) -> pyarrow.Table:
    """One row per image: who it is, what was decided and why.

    Columns: `id` (or `row`, counted from `first_row`, where the decisions have no ids), `action`, `reason`,
    `label` (null unless the action is a label), `released_set` (list of names), `p_audit`, `known_group` (of a site
    model only), `threshold_<class>` and `model_digest`. The schema metadata hold one JSON string under `calcode`.

    Parameters
    ----------
    decisions : Decisions
    first_row : int
        Number of the first row, for decisions that continue earlier ones.
    ids : pyarrow.ChunkedArray, optional
        Instead of those of the decisions, where they are a column already.

    Returns
    -------
    pyarrow.Table
    """
    import pyarrow as pa

    n = len(decisions.action)
    names = pa.array(decisions.classes, type=pa.string())
    released = decisions.released_sets
    offsets = np.concatenate([[0], np.cumsum(released.sum(axis=1))]).astype(np.int32)
    who: Any = np.arange(first_row, first_row + n) if decisions.ids is None else decisions.ids.tolist()
    columns: dict[str, Any] = {
        "row" if ids is None and decisions.ids is None else "id": pa.array(who) if ids is None else ids,
        "action": pa.DictionaryArray.from_arrays(decisions.action.astype(np.int32), pa.array(ACTION_WORDS)),
        "reason": pa.DictionaryArray.from_arrays(decisions.reason.astype(np.int32), pa.array(REASON_WORDS)),
        "label": names.take(pa.array(decisions.label, mask=decisions.label < 0)),
        "released_set": pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(released)[1]))),
        "p_audit": pa.array(decisions.p_audit, type=pa.float64()),
        "model_digest": pa.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), pa.array([decisions.model_digest])),
    }
    if decisions.known_group is not None:
        columns["known_group"] = pa.array(decisions.known_group)
    for name, column in zip(decisions.classes, np.ascontiguousarray(decisions.threshold.T), strict=True):
        columns[THRESHOLD_PREFIX + name] = pa.array(column, type=pa.float64())
    known = {key: getattr(decisions, key) for key in ("classes", "model_digest", "promises")}
    schema = decision_schema(columns, **known)
    return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def write_decisions(path: str | os.PathLike[str], decisions: Decisions) -> None:
    """Write decisions as Parquet, or as CSV if the name ends in `.csv`.

    In CSV the released set is one field, names joined by ";". A text that a spreadsheet would run gets an apostrophe
    before it, which `read_decisions` takes away. The same decisions give the same bytes.
    """
    with DecisionWriter(path) as writer:
        writer.append(decisions)


class DecisionWriter:
    """Writes decisions block after block; the file appears when the `with` block ends well, or not at all.

    Parameters
    ----------
    path : path-like
        Ends in `.parquet` or `.csv`.

    Examples
    --------
    A cohort larger than memory::

        with DecisionWriter("decisions.parquet") as writer:
            for cohort in open_features("cohort.parquet").batches():
                writer.append(model.decide(cohort.evidence))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if self._path.suffix not in _SUFFIXES:
            raise FeatureFileError(f"{self._path}: the name must end in {' or '.join(_SUFFIXES)}")
        self._stack: ExitStack | None = None
        self._temporary: Path | None = None
        self._writer: Any = None
        self._schema: Any = None
        self._who: list[Any] = []
        self._hashes: list[HashArray] = []
        self._rows = 0

    @property
    def n_rows(self) -> int:
        """Rows appended so far."""
        return self._rows

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        (self._temporary,) = self._stack.enter_context(replacing_together(self._path))
        return self

    def append(self, decisions: Decisions) -> None:
        """Add a block; it must come from the same model and have ids if the first block had."""
        self.append_table(decisions_table(decisions, first_row=self._rows))

    def append_table(self, table: pyarrow.Table) -> None:
        """Add a block that is a table already, as `decisions_table` makes it and `read_decisions` gives it back."""
        if self._stack is None or self._temporary is None:
            raise FeatureFileError("DecisionWriter: not open; use it as `with DecisionWriter(path) as writer:`")
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.csv
        import pyarrow.parquet

        content = table
        if self._path.suffix == ".csv":
            # Plain columns only.
            classes = [name for name in table.column_names if name.startswith(THRESHOLD_PREFIX)]
            joined = [name.removeprefix(THRESHOLD_PREFIX) for name in classes if SET_SEPARATOR in name]
            if joined:
                raise FeatureFileError(
                    f"classes: {joined} contain {SET_SEPARATOR!r}, which separates the names of a set in CSV; write "
                    ".parquet"
                )
            for i, field in enumerate(table.schema):
                column = table[field.name]
                if pa.types.is_dictionary(field.type):
                    column = column.cast(pa.string())
                elif field.name == "released_set":
                    column = pc.binary_join(column, SET_SEPARATOR)
                if pa.types.is_string(column.type):
                    column = pc.replace_substring_regex(column, _RUNS, r"'\1")
                content = content.set_column(i, field.name, column)
        if self._writer is None:
            self._schema = table.schema
            to = self._temporary, content.schema
            if self._path.suffix == ".csv":
                self._writer = self._stack.enter_context(pyarrow.csv.CSVWriter(*to))
            else:
                # Every id is another one: a dictionary of them would only cost time.
                words = [name for name in content.schema.names if name not in ("id", "row")]
                written = pyarrow.parquet.ParquetWriter(
                    *to, compression="zstd", use_dictionary=words, write_page_checksum=True
                )
                self._writer = self._stack.enter_context(written)
        elif not table.schema.equals(self._schema, check_metadata=True):
            raise MismatchError(
                "decisions: this block has another model, other classes or ids where the first block had "
                "none; write it to a file of its own"
            )
        self._writer.write_table(content)
        self._who += table.column(0).chunks
        self._hashes.append(text_hashes(table.column(0)))
        self._rows += table.num_rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        if error is not None:
            stack.__exit__(kind, error, traceback)
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        with stack:
            if self._writer is None:
                raise FeatureFileError(f"{self._path}: no decisions were appended, so nothing was written")
            # Sorted by hand: `np.unique` takes twenty times as long. Different ids may share a hash, which is no error.
            hashes = np.sort(np.concatenate(self._hashes))
            if (hashes[1:] == hashes[:-1]).any() and pc.count_distinct(
                pa.chunked_array(self._who)
            ).as_py() < self._rows:
                raise FeatureFileError(_TWICE.format(self._path, self._schema.names[0]))


def read_decisions(path: str | os.PathLike[str]) -> pyarrow.Table:
    """Read a decision file back as the table that was written, and check it.

    A CSV file keeps everything but the promises of the model.

    Parameters
    ----------
    path : path-like
        Ends in `.parquet` or `.csv`.

    Raises
    ------
    FeatureFileError
        If the file is missing, truncated, foreign, newer than this version, or contradicts itself.
    """
    file = require_regular(path)
    if file.suffix not in _SUFFIXES:
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
            if facts["format"] != _FORMAT:
                raise FeatureFileError(f"{file}: holds {facts['format']!r}, not decisions")
            if facts["version"] > _VERSION:
                raise FeatureFileError(
                    f"{file}: written in version {facts['version']} of the decision format and this is version "
                    f"{_VERSION}; install a newer calcode"
                )
            names = table.schema.names
            known = {key: facts[key] for key in ("classes", "model_digest", "promises")}
            expected = decision_schema(names, **known)
            if names != expected.names or table.schema.types != expected.types:
                raise FeatureFileError(f"{file}: columns {names} are not those of decisions: {expected.names}")
            table = table.replace_schema_metadata(expected.metadata)
        return _checked_content(table, file=file)


def decision_facts(table: pyarrow.Table) -> dict[str, Any]:
    """What the schema metadata of a decision table say: model digest, classes, promises, format version."""
    text = (table.schema.metadata or {}).get(_METADATA_KEY)
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
    """The table of a decision file as `Decisions`.

    A file holds released sets only. The set of an accepted image follows from them: it was released, empty, or full
    (the reason says which). Sets of unsupported images, scores and first-ranked classes are not in a file: the sets
    are empty here, the scores nan, the first-ranked class 0 with probability 0.

    Parameters
    ----------
    table : pyarrow.Table
        As `read_decisions` gives it.
    """
    facts = decision_facts(table)
    classes = tuple(facts["classes"])
    n = table.num_rows
    codes = {
        name: np.array([words.index(word) for word in table[name].to_pylist()], dtype=np.int8)
        for name, words in (("action", ACTION_WORDS), ("reason", REASON_WORDS))
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
        threshold=np.column_stack([table[THRESHOLD_PREFIX + name].to_numpy() for name in classes]),
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
    digests = text["model_digest"].unique().to_pylist()
    if len(digests) > 1:
        raise FeatureFileError(f"{file}: decisions of {len(digests)} models in one file: {digests[:3]}")
    others = [name for name in text.column_names if name not in (*_FIXED, "id", "row", "known_group")]
    classes = [name.removeprefix(THRESHOLD_PREFIX) for name in others]
    digest = digests[0] if digests and digests[0] else ""
    schema = decision_schema(text.column_names, classes=classes, model_digest=digest)
    if schema.names != text.column_names:
        raise FeatureFileError(f"{file}: columns {text.column_names} are not those of decisions: {schema.names}")
    joined = text["released_set"].fill_null("")
    no_names = pa.scalar([], pa.list_(pa.string()))
    sets = pc.if_else(pc.equal(joined, ""), no_names, pc.split_pattern(joined, SET_SEPARATOR))
    plain = {name: text[name] for name in text.column_names} | {"released_set": sets}
    columns = [plain[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _checked_content(table: pyarrow.Table, *, file: Path) -> pyarrow.Table:
    """The table, refused if it says of an image what cannot be (the first such row is named).

    Its dictionaries become those that it was written with: files keep only the words that occur.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    facts = decision_facts(table)
    for name, words in (("action", ACTION_WORDS), ("reason", REASON_WORDS), ("model_digest", (facts["model_digest"],))):
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
    thresholds = np.array([table[THRESHOLD_PREFIX + name].to_numpy() for name in facts["classes"]])
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
        raise FeatureFileError(_TWICE.format(file, who))
    return table
