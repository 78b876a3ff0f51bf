"""Parquet in blocks, in memory that does not grow with the file; damage becomes one kind of error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.errors import FeatureFileError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

#: Bytes of a column chunk held at a time. Without a buffer a whole chunk, and so a whole file, would be.
_BUFFER_BYTES = 1 << 20


def file_schema(path: Path) -> pyarrow.Schema:
    """The Arrow schema of a Parquet file."""
    with _opened(path) as file:
        return file.schema_arrow


def stream_tables(path: Path, *, columns: Sequence[str], batch_size: int) -> Iterator[pyarrow.Table]:
    """Tables of at most `batch_size` rows with the given columns, in the order of the file."""
    import pyarrow as pa

    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=batch_size, columns=list(columns)):
            yield pa.Table.from_batches([batch])


@contextmanager
def _opened(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FeatureFileError(f"{path}: no such file")
    try:
        with pq.ParquetFile(
            path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            yield file
    except (pa.ArrowException, OSError, EOFError) as error:
        raise FeatureFileError(f"{path}: truncated, damaged or not Parquet ({error})") from error
