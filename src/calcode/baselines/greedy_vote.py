"""The greedy majority ordering behind CP_r-value, for many test images at once.

The columns are the n calibration images and the K labels of one test image. Every prompt ranks them by
decreasing probability; at step t every prompt votes for its t-th column, and the open column with the most
votes is chosen, ties by the column order. The published loop looks at all n + K columns at every step.

Here a block of test images shares the work. The calibration images keep their order in every prompt's ranking, and
the labels of one image delay a vote by at most K steps. So votes without labels bound the votes in every image from
both sides: if they leave at least t calibration images with c votes at step t - K, of which at most t - 1 can be
chosen, the column chosen at step t has at least c votes. Only calibration images that can have that many votes are
considered; they are determined once per segment of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray, IntArray

#: Test images processed together: enough to amortise a call, few enough for their counts to stay in the cache.
BLOCK = 1024
#: Steps after which the columns in play are selected again.
_SEGMENT = 64
#: Key of a chosen column: later votes cannot lift it above an open column.
_CHOSEN = -(1 << 30)


@dataclass(frozen=True, eq=False)
class Rankings:
    """The calibration images in every prompt's ranking, without labels.

    Attributes
    ----------
    orders : ndarray of shape (M, n)
        Calibration images by decreasing probability, ties by index.
    negative : ndarray of shape (M, n)
        Their probabilities in that order, times -1.
    keys : ndarray of shape (M, n)
        Number of the group of equal probabilities times (n + 1), plus the image index: ascending.
    vote_steps : ndarray of shape (M, n)
        Row c has the step at which each image has c + 1 votes.
    """

    orders: IntArray
    negative: NDArray[np.float32]
    keys: IntArray
    vote_steps: IntArray

    @classmethod
    def from_probabilities(cls, calibration: FloatArray) -> Rankings:
        """Rankings from the true-label probabilities, shape (n, M), compared in float32."""
        values = np.ascontiguousarray(calibration.T, dtype=np.float32)
        orders = np.argsort(-values, axis=1, kind="stable")
        negative = -np.take_along_axis(values, orders, axis=1)
        n = values.shape[1]
        groups = np.zeros(orders.shape, dtype=np.int64)
        np.cumsum(np.diff(negative, axis=1) > 0, axis=1, out=groups[:, 1:])
        positions = np.empty_like(orders)
        np.put_along_axis(positions, orders, np.arange(1, n + 1)[None, :], axis=1)
        return cls(orders, negative, groups * (n + 1) + orders, np.sort(positions, axis=0))

    def places(self, candidates: NDArray[np.float32], before: IntArray) -> IntArray:
        """0-based step at which each prompt reaches each label.

        Parameters
        ----------
        candidates : ndarray of shape (B, M, K)
        before : ndarray of shape (B, K)
            How many calibration images precede each label in the column order.

        Returns
        -------
        ndarray of shape (M, B, K)
        """
        n_labels = candidates.shape[2]
        n = self.orders.shape[1]
        by_column = np.argsort(before, axis=1, kind="stable")
        found = np.empty((len(self.orders), *before.shape), dtype=np.int64)
        for r, (negative, keys) in enumerate(zip(self.negative, self.keys, strict=True)):
            values = candidates[:, r]
            low = np.searchsorted(negative, -values, side="left")
            high = np.searchsorted(negative, -values, side="right")
            first = keys[np.minimum(low, n - 1)]
            tied = np.searchsorted(keys, first - first % (n + 1) + before, side="left")
            preceding = np.where(low == high, low, tied)
            # Labels by decreasing probability, ties by column; each comes after the labels before it.
            by_value = np.argsort(-np.take_along_axis(values, by_column, axis=1), axis=1, kind="stable")
            order = np.take_along_axis(by_column, by_value, axis=1)
            np.put_along_axis(
                found[r], order, np.take_along_axis(preceding, order, axis=1) + np.arange(n_labels), axis=1
            )
        return found

    def sure_votes(self, n_labels: int) -> IntArray:
        """Lower bound of the votes of the chosen column, for every step from 1 to n + K; shape (n + K,)."""
        steps = np.arange(1, self.orders.shape[1] + n_labels + 1)
        sure = np.ones(len(steps), dtype=np.int64)
        for votes, reached in enumerate(np.sort(self.vote_steps, axis=1), start=1):
            enough = np.searchsorted(reached, steps - n_labels, side="right") >= steps
            sure[enough] = votes
        return sure


def label_steps(rankings: Rankings, candidates: NDArray[np.float32], before: IntArray) -> IntArray:
    """Step (1-based) at which every label of every test image is chosen; shape (B, K).

    Parameters
    ----------
    rankings : Rankings
    candidates : ndarray of float32, shape (B, M, K)
    before : ndarray of shape (B, K)
        How many calibration images precede each label in the column order.
    """
    n, n_labels = rankings.orders.shape[1], before.shape[1]
    labels = _Labels(rankings.places(candidates, before), before)
    board = _Board(rankings, n_images=len(before))
    sure = rankings.sure_votes(n_labels)
    for start in range(0, n + n_labels, _SEGMENT):
        stop = min(start + _SEGMENT, n + n_labels)
        board.bring_into_play(votes=int(sure[start:stop].min()), stop=stop)
        for step in range(start, stop):
            board.vote(step, labels)
            leader, votes, image = board.leader()
            winners = labels.choose(step, votes, image)
            board.choose(leader, except_for=winners)
    return labels.steps


class _Labels:
    """Votes for the labels of a block of test images, and the step at which each label was chosen."""

    def __init__(self, places: IntArray, before: IntArray) -> None:
        _, n_images, n_labels = places.shape
        self.steps = np.zeros((n_images, n_labels), dtype=np.int64)
        order = np.argsort(before, axis=1, kind="stable")
        self._order = order
        self._before = np.take_along_axis(before, order, axis=1)
        # Key of a label: its votes in the high bits, its place in the column order below, so that the largest key wins.
        self._shift = max(1, (n_labels - 1).bit_length())
        self._keys = np.broadcast_to(
            (1 << self._shift) - 1 - np.arange(n_labels, dtype=np.int32)[:, None], (n_labels, n_images)
        ).copy()
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(n_labels)[None, :], axis=1)
        prompts, images, labels = np.indices(places.shape).reshape(3, -1)
        by_step = np.argsort(places.ravel(), kind="stable")
        self.prompts, self.images = prompts[by_step], images[by_step]
        self._cells = (rank[images, labels] * n_images + images)[by_step]
        self._bounds = np.searchsorted(places.ravel()[by_step], np.arange(places.max() + 2)).tolist()

    def voted(self, step: int) -> slice:
        """Count the votes for labels at this step; return their slice of `prompts` and `images`."""
        if step + 1 >= len(self._bounds):
            return slice(0, 0)
        votes = slice(self._bounds[step], self._bounds[step + 1])
        if votes.stop > votes.start:
            np.add.at(self._keys.reshape(-1), self._cells[votes], 1 << self._shift)
        return votes

    def choose(self, step: int, votes: IntArray, image: IntArray) -> IntArray:
        """Choose the label in the images in which a label beats the leading calibration image; return these images.

        Parameters
        ----------
        step : int
        votes, image : ndarray of shape (B,)
            Votes and index of the leading calibration image.
        """
        best = self._keys.max(axis=0)
        own = best >> self._shift
        winners: IntArray = np.flatnonzero(own >= votes)
        if len(winners) == 0:
            return winners
        place = (1 << self._shift) - 1 - (best[winners] & ((1 << self._shift) - 1))
        earlier = self._before[winners, place] <= image[winners]
        sure = (own[winners] > votes[winners]) | earlier
        winners, place = winners[sure], place[sure]
        self.steps[winners, self._order[winners, place]] = step + 1
        self._keys[place, winners] = 2 * _CHOSEN
        return winners


class _Board:
    """Votes for the calibration images in every test image of a block.

    The keys have one column per test image. The first rows are the calibration images in play, by index. After them
    every calibration image has a home row, in which it waits. The last row takes votes that are not needed. A key in
    play has the number of votes in the high bits and its place among the rows in play below, so that the largest key
    leads. Only rows in play can be chosen.
    """

    def __init__(self, rankings: Rankings, *, n_images: int) -> None:
        n_prompts, n = rankings.orders.shape
        self._rankings = rankings
        self._n = n
        self._shift = n.bit_length()
        # Allocate for the largest number of rows in play: memory that is never written costs nothing.
        self._keys = np.zeros((2 * n + 1, n_images), dtype=np.int32)
        self._flat = self._keys.reshape(-1)
        self._nobody = 2 * n * n_images
        self._images = np.arange(n_images)
        self._delays = np.zeros((n_prompts, n_images), dtype=np.int64)
        self._offsets = np.arange(n_prompts)[:, None] * (n + 1)
        self._open = np.ones(n, dtype=bool)
        self._rows = np.empty(0, dtype=np.int64)

    def bring_into_play(self, *, votes: int, stop: int) -> None:
        """Bring rows into play that can have `votes` votes before step `stop`, unless chosen in every image."""
        played = self._keys[: len(self._rows)]
        self._open[self._rows] = (played >= 0).any(axis=1)
        self._keys[self._n + self._rows] = played - self._places()
        self._rows = np.flatnonzero(self._open & (self._rankings.vote_steps[votes - 1] <= stop))
        self._keys[: len(self._rows)] = self._keys[self._n + self._rows] + self._places()
        cell = self._n + np.arange(self._n)
        cell[self._rows] = np.arange(len(self._rows))
        table = np.full((len(self._offsets), self._n + 1), self._nobody)
        table[:, :-1] = (cell * len(self._images))[self._rankings.orders]
        self._table = table.reshape(-1)
        self._image_of = np.append(self._rows, self._n)

    def _places(self) -> NDArray[np.int32]:
        """Values that the rows in play add to their keys, largest for the first row; shape (rows, 1)."""
        return np.arange(len(self._rows), 0, -1, dtype=np.int32)[:, None]

    def vote(self, step: int, labels: _Labels) -> None:
        """Let every prompt vote for its next column in every test image."""
        cells = self._table[self._offsets + step - self._delays]
        voted = labels.voted(step)
        if voted.stop > voted.start:
            prompts, images = labels.prompts[voted], labels.images[voted]
            cells[prompts, images] = self._nobody
            self._delays[prompts, images] += 1
        cells += self._images
        one = np.int32(1 << self._shift)
        for row in cells:
            # One prompt after another, because two may vote for the same calibration image.
            self._flat[row] += one

    def leader(self) -> tuple[IntArray, IntArray, IntArray]:
        """Leading row in play of every test image, ties by the first row; its votes and calibration image.

        If all rows in play are chosen, the votes are zero: some label has more and is chosen at this step.
        """
        best = self._keys[: len(self._rows)].max(axis=0, initial=0)
        row = len(self._rows) - (best & ((1 << self._shift) - 1))
        return row, best >> self._shift, self._image_of[row]

    def choose(self, leader: IntArray, *, except_for: IntArray) -> None:
        """Mark the leaders as chosen, except in the test images in which a label was chosen."""
        cells = leader * len(self._images) + self._images
        cells[except_for] = self._nobody + except_for
        self._flat[cells] = _CHOSEN
