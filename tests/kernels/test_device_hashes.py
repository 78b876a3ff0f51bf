"""BLAKE2b on a device against Python's own."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DEVICE

from calcode.kernels.device_hashes import LONGEST, DeviceHashes

pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")
texts = st.text(min_size=1).filter(lambda text: len(text.encode()) <= LONGEST)


@settings(deadline=None, max_examples=40)
@given(
    key=st.binary(min_size=1, max_size=64),
    size=st.integers(8, 64),
    column=st.lists(texts, min_size=1, max_size=30),
    skipped=st.integers(0, 3),
)
def test_first_words_are_those_of_blake2b(key: bytes, size: int, column: list[str], skipped: int) -> None:
    array = pa.array(["x"] * skipped + column)[skipped:]
    found = DeviceHashes(key, digest_size=size, device=DEVICE).first_words(array)
    digests = [hashlib.blake2b(text.encode(), key=key, digest_size=size).digest() for text in column]
    assert found.tolist() == [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 127, LONGEST])
def test_every_length_up_to_the_longest(length: int) -> None:
    text = "é" * (length // 2) + "a" * (length % 2)
    (found,) = DeviceHashes(b"key", digest_size=16, device=DEVICE).first_words(pa.array([text])).tolist()
    digest = hashlib.blake2b(text.encode(), key=b"key", digest_size=16).digest()
    assert found == int.from_bytes(digest[:8], "little", signed=True)
