"""A file cut into the same pieces wherever it is worked on."""

from __future__ import annotations

from dataclasses import dataclass

#: Images decided at a time. Every engine cuts a file here, so that each computes on the same arrays.
BLOCK = 4096


@dataclass(frozen=True, order=True)
class RowRange:
    """Rows `start` to `stop` of a file, the latter not included."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        """For names of files; in the order of the rows when sorted."""
        return f"{self.start:012d}-{self.stop:012d}"


def row_ranges(n_rows: int, *, block: int = BLOCK) -> tuple[RowRange, ...]:
    """All rows in pieces of `block`, the last one shorter.

    Examples
    --------
    >>> row_ranges(5, block=2)
    (RowRange(start=0, stop=2), RowRange(start=2, stop=4), RowRange(start=4, stop=5))
    """
    return tuple(RowRange(start, min(start + block, n_rows)) for start in range(0, n_rows, block))
