"""Parquet in blocks, in memory that does not grow with the file; damage becomes one kind of error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.errors import FeatureFileError
from calcode.files import require_regular

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

#: Bytes of a column chunk held at a time. Without a buffer a whole chunk, and so a whole file, would be.
_BUFFER_BYTES = 1 << 20
#: A file of so many bytes is read without one: a buffer grows to whatever length a damaged page claims to have.
_SMALL_FILE = 1 << 22
#: Parts of one kind (row groups, columns) that a header may announce; room for them is taken before they are read.
_MOST_PARTS = 100_000


def file_schema(path: Path) -> pyarrow.Schema:
    """The Arrow schema of a Parquet file."""
    with opened_parquet(path) as file:
        return file.schema_arrow


def stream_tables(path: Path, *, columns: Sequence[str], batch_size: int) -> Iterator[pyarrow.Table]:
    """Tables of at most `batch_size` rows with the given columns, in the order of the file."""
    import pyarrow as pa

    with opened_parquet(path) as file, damage_named(path):
        for batch in file.iter_batches(batch_size=batch_size, columns=list(columns)):
            yield without_views(pa.Table.from_batches([batch]))


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file as one kind of error that names it."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise FeatureFileError(
            f"{path}: text that is not UTF-8 ({error.reason}); write the file anew with its text in UTF-8"
        ) from error
    except (pa.ArrowException, OSError, EOFError) as error:
        raise FeatureFileError(f"{path}: truncated, damaged or not Parquet ({error})") from error


def opened_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """A Parquet file, open; its pages are checked as they are read."""
    import pyarrow.parquet as pq

    require_regular(path)
    with damage_named(path):
        return pq.ParquetFile(
            path,
            buffer_size=_BUFFER_BYTES if path.stat().st_size > _SMALL_FILE else 0,
            pre_buffer=False,
            page_checksum_verification=True,
            thrift_container_size_limit=_MOST_PARTS,
        )


def without_views(table: pyarrow.Table) -> pyarrow.Table:
    """The table with string views as strings: Arrow cannot filter views."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            column = table.column(i).cast(pa.string())
            table = table.set_column(i, field.with_type(pa.string()), column)
    return table


class RowReader:
    """Rows of a Parquet file by their numbers; to be closed.

    Ranges asked for in ascending order cost one pass over the file, however its row groups are cut, and row groups
    between two ranges are not read.

    Parameters
    ----------
    path : Path
    columns : sequence of str
    batch_size : int
        Rows decoded at a time.

    Attributes
    ----------
    n_rows : int
        Rows of the file.
    """

    def __init__(self, path: Path, *, columns: Sequence[str], batch_size: int = 4096) -> None:
        self._path = path
        self._columns = list(columns)
        self._batch_size = batch_size
        self._file = opened_parquet(path)
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._first_rows = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.n_rows = int(self._first_rows[-1])
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._held: list[pyarrow.RecordBatch] = []
        # Nothing is held yet: the first range jumps to its row group.
        self._held_from = self._held_to = -1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def spans(self, *, at_least: int) -> list[tuple[int, int]]:
        """All rows in runs of whole row groups, each of `at_least` rows but for the last; one huge group is one run."""
        spans, start = [], 0
        for stop in self._first_rows[1:].tolist():
            if stop - start >= at_least or stop == self.n_rows:
                spans.append((start, stop))
                start = stop
        return [span for span in spans if span[0] < span[1]]

    def table(self, start: int, stop: int) -> pyarrow.Table:
        """Rows `start` to `stop` of the file, the latter not included."""
        import pyarrow as pa

        if not 0 <= start < stop <= self.n_rows:
            raise FeatureFileError(f"{self._path}: it has {self.n_rows} rows, not {start} to {stop}")
        group = int(np.searchsorted(self._first_rows, start, side="right")) - 1
        if start < self._held_from or self._first_rows[group] > self._held_to:
            self._batches = self._file.iter_batches(
                batch_size=self._batch_size,
                row_groups=list(range(group, len(self._first_rows) - 1)),
                columns=self._columns,
            )
            self._held = []
            self._held_from = self._held_to = int(self._first_rows[group])
        with damage_named(self._path):
            while self._held_to < stop:
                self._held.append(next(self._batches))
                self._held_to += len(self._held[-1])
                while self._held and self._held_from + len(self._held[0]) <= start:
                    self._held_from += len(self._held.pop(0))
        whole = pa.Table.from_batches(self._held)
        return without_views(whole.slice(start - self._held_from, stop - start))
