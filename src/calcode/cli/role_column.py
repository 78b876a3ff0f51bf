"""A feature file written again with a role for every image, in memory that does not grow with its embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calcode.arrays import TextArray
from calcode.cohorts import FeatureFile, split_roles, write_prompts
from calcode.cohorts.census import missing_labels
from calcode.cohorts.columns import label_names, text_values
from calcode.cohorts.feature_schema import DIGEST_KEY
from calcode.cohorts.parquet_stream import file_schema, stream_tables
from calcode.cohorts.prompts import PROMPTS_SUFFIX
from calcode.errors import CalcodeWarning, FeatureFileError
from calcode.files import replacing

_ROWS = 8192


def assigned_roles(
    file: FeatureFile, *, target: Path, sizes: Sequence[float], seed: int, replace_roles: bool
) -> tuple[TextArray, TextArray]:
    """Label name and new role of every image, after the checks that the file can be split.

    Parameters
    ----------
    file : FeatureFile
    target : Path
        Where the result is to go; not the file itself.
    sizes : sequence of float
        As in `split_roles`.
    seed : int
    replace_roles : bool
        Whether roles that the file has may be replaced.
    """
    if target.resolve() == file.path.resolve():
        raise FeatureFileError(f"{target}: is the file to be split; write to another one")
    if file.role_counts and not replace_roles:
        raise FeatureFileError(
            f"{file.path}: column 'role' is there already ({', '.join(file.role_counts)}); fit on it as it is, or pass "
            "--replace-roles"
        )
    column = file.layout.label_column
    if column is None:
        raise FeatureFileError(
            f"{file.path}: no column 'label_name', and only labelled images can be split; add the diagnoses"
        )
    if file.census.n_unlabelled:
        raise FeatureFileError(
            f"{file.path}: column {column!r} is empty in {file.census.n_unlabelled} of {file.n_rows} rows; fill it in "
            "or leave these images out"
        )
    labels, groups = _labels_and_groups(file, column)
    if groups is None:
        warnings.warn(
            f"{file.path}: no column 'group', so images of one patient may fall into different roles; every promise "
            "supposes that they do not",
            CalcodeWarning,
            stacklevel=2,
        )
    with warnings.catch_warnings():
        # The command tells the counts itself, for the classes of the prompts.
        warnings.simplefilter("ignore", CalcodeWarning)
        return labels, split_roles(labels, groups=groups, sizes=sizes, random_state=seed)


def _labels_and_groups(file: FeatureFile, column: str) -> tuple[TextArray, TextArray | None]:
    has_groups = "group" in file.layout.columns
    labels, groups = [], []
    for table in stream_tables(
        file.path, columns=[column, "group"] if has_groups else [column], batch_size=_ROWS
    ):
        assert not missing_labels(table[column]).any()
        names = label_names(table, layout=file.layout, path=file.path)
        # An integer label of -1 has no name, but is a label all the same.
        labels.append(np.where(names == "", "(outside)", names))
        if has_groups:
            groups.append(text_values(table["group"]))
    return np.concatenate(labels), np.concatenate(groups) if has_groups else None


def write_with_roles(file: FeatureFile, target: Path, roles: TextArray) -> None:
    """Write the file again with this role per row, and the prompts beside it.

    Parameters
    ----------
    file : FeatureFile
    target : Path
    roles : ndarray of str, shape (n,)
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = file_schema(file.path)
    if "role" in schema.names:
        schema = schema.remove(schema.get_field_index("role"))
    kept = schema.names
    position = kept.index("embedding")
    facts = {**(schema.metadata or {}), DIGEST_KEY: file.prompts.digest.encode()}
    schema = schema.insert(position, pa.field("role", pa.string())).with_metadata(facts)
    # Prompts first: features that are there are then sure to find theirs.
    write_prompts(target.with_name(target.stem + PROMPTS_SUFFIX), file.prompts)
    first = 0
    with (
        replacing(target) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name != "embedding"],
            write_page_checksum=True,
        ) as writer,
    ):
        for table in stream_tables(file.path, columns=kept, batch_size=_ROWS):
            new = pa.array(roles[first : first + table.num_rows].tolist(), type=pa.string())
            columns = {**{name: table[name] for name in kept}, "role": new}
            writer.write_table(pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema))
            first += table.num_rows
