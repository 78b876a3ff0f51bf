"""Keyed BLAKE2b (RFC 7693) of very many short texts at once, on a torch device.

A CPU hashes one text after the other and keeps the GIL meanwhile; a device takes all texts through the same twelve
rounds together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow
    import torch

#: Bytes that BLAKE2b compresses at a time. Longer texts would need several passes and are not hashed here.
LONGEST = 128
#: Fractional parts of the square roots of the first eight primes.
_START = tuple(math.isqrt(prime << 128) & ((1 << 64) - 1) for prime in (2, 3, 5, 7, 11, 13, 17, 19))
_ROUNDS = 12
#: Order in which each round uses the words of the message; the last two rounds repeat the first two.
_SIGMA = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)


class DeviceHashes:
    """The first eight bytes of BLAKE2b with one key, for columns of texts.

    Parameters
    ----------
    key : bytes
        1 to 64 bytes.
    digest_size : int
        Length of the whole hash in bytes; the first eight bytes depend on it.
    device : str
    """

    def __init__(self, key: bytes, *, digest_size: int, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._start = _signed(_START, device=self._device)[:, None]
        #: By round, column or diagonal, and lane: the words that are added first and second.
        self._order = torch.tensor(_SIGMA, device=self._device).view(-1, 2, 4, 2)
        start = [*_START]
        start[0] ^= 0x01010000 ^ (len(key) << 8) ^ digest_size
        begun = _signed(start, device=self._device)[:, None]
        block = np.frombuffer(key.ljust(LONGEST, b"\0"), dtype=np.int64)
        message = torch.tensor(block, device=self._device)[:, None]
        length = torch.tensor([LONGEST], device=self._device)
        #: The state with which every text begins: the key is already absorbed.
        self._begun = self._compressed(begun, message, length=length, last=False)

    def first_words(self, texts: pyarrow.StringArray) -> torch.Tensor:
        """First eight bytes of every hash as one number.

        Parameters
        ----------
        texts : pyarrow.StringArray of length n
            Without nulls, of 1 to `LONGEST` bytes each.

        Returns
        -------
        tensor of int64, shape (n,)
        """
        import torch

        _, offsets, content = texts.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
        data = np.frombuffer(content, dtype=np.uint8)[places[0] : places[-1]]
        starts = torch.tensor(places - places[0], dtype=torch.int64, device=self._device)
        lengths = starts[1:] - starts[:-1]
        width = -(-int(lengths.max()) // 8) * 8
        column = torch.arange(width, device=self._device)
        letters = torch.tensor(data, device=self._device)
        inside = column < lengths[:, None]
        padded = letters[torch.where(inside, starts[:-1, None] + column, 0)] * inside
        message = torch.zeros((LONGEST // 8, len(texts)), dtype=torch.int64, device=self._device)
        message[: width // 8] = padded.view(torch.int64).T
        return self._compressed(self._begun, message, length=lengths + LONGEST, last=True)[0]

    def _compressed(
        self, state: torch.Tensor, message: torch.Tensor, *, length: torch.Tensor, last: bool
    ) -> torch.Tensor:
        """The state after one block of every text; (8, 1 or n) and (16, n) in, (8, n) out.

        The four columns of RFC 7693's matrix are mixed side by side, then its diagonals.
        """
        import torch

        n = message.shape[1]
        a, b = (half.expand(4, n) for half in (state[:4], state[4:]))
        c, d = self._start[:4].expand(4, n), self._start[4:].repeat(1, n)
        d[0] ^= length
        if last:
            d[2] ^= -1
        for turn in range(_ROUNDS):
            order = self._order[turn % len(_SIGMA)]
            for diagonal in (0, 1):
                first, second = message[order[diagonal, :, 0]], message[order[diagonal, :, 1]]
                a = a + b + first
                d = _rotated(d ^ a, 32)
                c = c + d
                b = _rotated(b ^ c, 24)
                a = a + b + second
                d = _rotated(d ^ a, 16)
                c = c + d
                b = _rotated(b ^ c, 63)
                # Rotates the rows so that the diagonals become columns, and afterwards back.
                way = 1 if diagonal else -1
                b, c, d = b.roll(way, 0), c.roll(2 * way, 0), d.roll(3 * way, 0)
        return state ^ torch.cat([a ^ c, b ^ d])


def _rotated(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Words of 64 bits rotated to the right; the sign bit is treated like any other bit."""
    return ((words >> bits) & ((1 << (64 - bits)) - 1)) | (words << (64 - bits))


def _signed(words: list[int] | tuple[int, ...], *, device: torch.device) -> torch.Tensor:
    """Words of 64 bits as signed integers, the form that torch supports."""
    import torch

    return torch.tensor(np.array(words, dtype=np.uint64).view(np.int64), device=device)
