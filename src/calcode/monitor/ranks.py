"""Ranks in a growing collection, stored as a list of sorted blocks."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from calcode.errors import EvidenceError

#: Initial number of values in a block; a block with twice as many is halved.
_BLOCK = 512
#: Decimals used in comparisons. Rounding in a matrix product is far smaller, so ties stay ties. Equality of rounded
#: values is transitive, which a tolerance between pairs would not be.
_DECIMALS = 12


class GrowingRanks:
    """Sorted values, to which others are added one at a time.

    An insertion changes one block, so n insertions cost O(n sqrt(n)) at worst, and about 3 microseconds each up to
    100,000 values; a single list would cost O(n^2).

    Parameters
    ----------
    values : iterable of float
        Finite numbers in any order; compared at 12 decimals (the only tolerance of SITE.md).

    Examples
    --------
    >>> ranks = GrowingRanks([0.1, 0.3, 0.3])
    >>> ranks.insert(0.3)  # none is greater, two are equal
    (0, 2)
    >>> ranks.insert(0.2)
    (3, 0)
    >>> list(ranks)
    [0.1, 0.2, 0.3, 0.3, 0.3]
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        ordered = sorted(_comparable(value) for value in values)
        self._blocks = [ordered[i : i + _BLOCK] for i in range(0, len(ordered), _BLOCK)]
        self._tops = [block[-1] for block in self._blocks]
        self._sizes = [len(block) for block in self._blocks]
        self._n = len(ordered)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[float]:
        return itertools.chain.from_iterable(self._blocks)

    def insert(self, value: float) -> tuple[int, int]:
        """Add a value; return how many earlier values are greater, and how many are equal."""
        value = _comparable(value)
        tops, blocks, sizes = self._tops, self._blocks, self._sizes
        # First block that reaches the value, and first block that exceeds it: equal values may fill whole blocks.
        reaching = bisect_left(tops, value)
        exceeding = bisect_right(tops, value, reaching)
        below = at_most = self._n
        if reaching < len(tops):
            below = sum(sizes[:reaching]) + bisect_left(blocks[reaching], value)
        if exceeding < len(tops):
            at_most = sum(sizes[:exceeding]) + bisect_right(blocks[exceeding], value)
        counts = self._n - at_most, at_most - below
        self._n += 1
        if not blocks:
            blocks.append([value])
            tops.append(value)
            sizes.append(1)
            return counts
        target = min(reaching, len(tops) - 1)
        insort(blocks[target], value)
        sizes[target] += 1
        if sizes[target] > 2 * _BLOCK:
            whole = blocks[target]
            blocks[target : target + 1] = [whole[:_BLOCK], whole[_BLOCK:]]
            tops[target : target + 1] = [whole[_BLOCK - 1], whole[-1]]
            sizes[target : target + 1] = [_BLOCK, len(whole) - _BLOCK]
        else:
            tops[target] = blocks[target][-1]
        return counts


def _comparable(value: float) -> float:
    rounded = round(float(value), _DECIMALS)
    if rounded - rounded != 0.0:
        raise EvidenceError(f"value: {value} has no rank; a monitor needs finite numbers")
    return rounded
