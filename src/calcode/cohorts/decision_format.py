"""The columns and words of a decision file, and the reader that checks them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.errors import FeatureFileError
from calcode.files import canonical_json
from calcode.method.decisions import Action, Reason

if TYPE_CHECKING:
    import pyarrow

#: What the columns `action` and `reason` say.
ACTION_WORDS = tuple(action.name.lower() for action in Action)
REASON_WORDS = tuple(reason.name.lower() for reason in Reason)
#: Columns of thresholds: this, then the name of the class.
THRESHOLD_PREFIX = "threshold_"
#: Between the names of a set in CSV.
SET_SEPARATOR = ";"
#: The one key of the schema metadata.
_METADATA_KEY = b"calcode"
_FORMAT = "calcode-decisions"
_VERSION = 1
_FIXED = ("action", "reason", "label", "released_set", "p_audit", "model_digest")


def decision_schema(
    *, classes: Sequence[str], model_digest: str, promises: Sequence[str], with_ids: bool
) -> pyarrow.Schema:
    """The Arrow schema of decisions by one model, its metadata included."""
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
            ("id", pa.string()) if with_ids else ("row", pa.int64()),
            ("action", words),
            ("reason", words),
            ("label", pa.string()),
            ("released_set", pa.list_(pa.field("element", pa.string()))),  # as Parquet names it
            ("p_audit", pa.float64()),
            *((THRESHOLD_PREFIX + name, pa.float64()) for name in classes),
            ("model_digest", words),
        ],
        metadata={_METADATA_KEY: canonical_json(facts).encode()},
    )


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
    file = Path(path)
    if not file.is_file():
        raise FeatureFileError(f"{file}: no such file")
    if file.suffix not in {".parquet", ".csv"}:
        raise FeatureFileError(f"{file}: decisions are read from .parquet or .csv, not from {file.suffix!r}")
    table = _from_csv(file) if file.suffix == ".csv" else _from_parquet(file)
    _check_content(table, file=file)
    return _with_whole_dictionaries(table)


def decision_facts(table: pyarrow.Table) -> dict[str, Any]:
    """What the schema metadata of a decision table say: model digest, classes, promises, format version."""
    text = (table.schema.metadata or {}).get(_METADATA_KEY)
    if text is None:
        raise FeatureFileError("table: no 'calcode' in its schema metadata; it is not a table of decisions")
    return dict(json.loads(text))


def _from_parquet(file: Path) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as content:
            table = content.read()
    except (pa.ArrowException, OSError) as error:
        raise FeatureFileError(f"{file}: truncated, damaged or not Parquet ({error})") from error
    try:
        facts = decision_facts(table)
    except ValueError as error:
        raise FeatureFileError(f"{file}: {error}") from error
    if facts.get("format") != _FORMAT:
        raise FeatureFileError(f"{file}: holds {facts.get('format')!r}, not decisions")
    if facts.get("version", 0) > _VERSION:
        raise FeatureFileError(
            f"{file}: written in version {facts['version']} of the decision format and this is version "
            f"{_VERSION}; install a newer calcode"
        )
    expected = decision_schema(
        classes=facts["classes"],
        model_digest=facts["model_digest"],
        promises=facts["promises"],
        with_ids="id" in table.column_names,
    )
    if table.schema.names != expected.names or table.schema.types != expected.types:
        raise FeatureFileError(
            f"{file}: columns {table.schema.names} are not those of decisions: {expected.names}"
        )
    return table.replace_schema_metadata(expected.metadata)


def _from_csv(file: Path) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    kinds = dict.fromkeys(("id", "action", "reason", "label", "released_set", "model_digest"), pa.string())
    try:
        text = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={**kinds, "p_audit": pa.float64(), "row": pa.int64()},
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
            f"{file}: lacks the columns {missing or ['id or row']}; it has {text.column_names}"
        )
    digests = text["model_digest"].unique().to_pylist()
    if len(digests) > 1:
        raise FeatureFileError(f"{file}: decisions of {len(digests)} models in one file: {digests[:3]}")
    schema = decision_schema(
        classes=[
            name.removeprefix(THRESHOLD_PREFIX)
            for name in text.column_names
            if name not in (*_FIXED, "id", "row")
        ],
        model_digest=digests[0] if digests and digests[0] else "",
        promises=(),
        with_ids="id" in text.column_names,
    )
    if schema.names != text.column_names:
        raise FeatureFileError(
            f"{file}: columns {text.column_names} are not those of decisions: {schema.names}"
        )
    joined = text["released_set"].fill_null("")
    no_names = pa.scalar([], pa.list_(pa.string()))
    sets = pc.if_else(pc.equal(joined, ""), no_names, pc.split_pattern(joined, SET_SEPARATOR))
    plain = {name: text[name] for name in text.column_names} | {"released_set": sets}
    columns = [plain[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _with_whole_dictionaries(table: pyarrow.Table) -> pyarrow.Table:
    """The table with the dictionaries it was written with; files keep only the words that occur."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digest = decision_facts(table)["model_digest"]
    for name, words in (("action", ACTION_WORDS), ("reason", REASON_WORDS), ("model_digest", (digest,))):
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        codes = pc.index_in(table[name].combine_chunks().cast(pa.string()), value_set=pa.array(words))
        column = pa.DictionaryArray.from_arrays(codes.cast(field.type.index_type), pa.array(words))
        table = table.set_column(index, field, column)
    return table


def _check_content(table: pyarrow.Table, *, file: Path) -> None:
    """Words that are known, and sets that agree with the action."""
    import pyarrow.compute as pc

    classes = set(decision_facts(table)["classes"])
    for name, words in (("action", ACTION_WORDS), ("reason", REASON_WORDS)):
        foreign = [word for word in table[name].unique().to_pylist() if word not in words]
        if foreign:
            raise FeatureFileError(f"{file}: column {name!r} holds {foreign}, not one of {list(words)}")
    outside = [
        name for name in pc.list_flatten(table["released_set"]).unique().to_pylist() if name not in classes
    ]
    if outside:
        raise FeatureFileError(
            f"{file}: column 'released_set' holds {outside}, not among the classes {sorted(classes)}"
        )
    sizes = pc.list_value_length(table["released_set"]).to_numpy()
    action = table["action"].cast("string").to_numpy()
    wrong = (
        ((action == "defer") & (sizes > 0))
        | ((action == "label") & (sizes != 1))
        | ((action == "set") & (sizes < 2))
    )
    if wrong.any():
        row = int(wrong.argmax())
        raise FeatureFileError(
            f"{file}: row {row} has the action {action[row]!r} and a released set of {sizes[row]} names; "
            f"the file was changed after it was written"
        )
