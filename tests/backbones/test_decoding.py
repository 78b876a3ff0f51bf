from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from backbones.stand_ins import DEADLY, DeadlyPreprocessing, StripsTakeTooMuch, pictures
from PIL import Image

from calcode.backbones import Preprocessing
from calcode.backbones.decoding import Decoder
from calcode.backbones.preprocessing import Preprocessing as Steps
from calcode.datasets.images import read_image
from calcode.errors import BackboneError

STEPS = Preprocessing(resize=8, crop=(8, 8))


def decoded(
    paths: list[str], *, workers: int, batch_size: int = 4, steps: Steps = STEPS
) -> tuple[np.ndarray, dict[int, str], list[int]]:
    """All pixels, the reasons by row, and the rows in the order they came."""
    pixels, reasons, rows = [], {}, []
    with Decoder(paths, preprocessing=steps, batch_size=batch_size, workers=workers) as decoder:
        for batch in decoder.batches(np.arange(len(paths))):
            pixels.append(batch.pixels.copy())
            reasons |= {int(batch.rows[position]): reason for position, reason in batch.unreadable.items()}
            rows += batch.rows.tolist()
    return np.concatenate(pixels), reasons, rows


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_every_image_once_in_order(tmp_path: Path, workers: int) -> None:
    # More batches than there are places for them, so that every place is used again.
    paths = pictures(tmp_path, count=27)
    pixels, reasons, rows = decoded(paths, workers=workers)
    assert rows == list(range(27))
    assert reasons == {}
    assert np.array_equal(pixels, np.stack([STEPS.pixels(read_image(path)) for path in paths]))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_is_black_and_has_a_reason(tmp_path: Path, workers: int) -> None:
    paths = pictures(tmp_path, count=6)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:60])
    Path(paths[4]).write_text("no image")
    paths[5] = ""
    pixels, reasons, _ = decoded(paths, workers=workers)
    assert sorted(reasons) == [1, 4, 5]
    assert reasons[5] == "no such file"
    assert not pixels[[1, 4, 5]].any()
    assert pixels[[0, 2, 3]].any(axis=(1, 2, 3)).all()


def test_an_image_that_ends_its_process_is_found_and_the_others_are_kept(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=14)
    deadly = np.full((9, 9, 3), 77, dtype=np.uint8)
    deadly[0, 0] = DEADLY
    for row in (3, 10):
        Image.fromarray(deadly).save(paths[row])
    pixels, reasons, rows = decoded(paths, workers=2, steps=DeadlyPreprocessing(resize=8, crop=(8, 8)))
    assert rows == list(range(14))
    assert sorted(reasons) == [3, 10]
    assert "ended the process" in reasons[3]
    others = [row for row in range(14) if row not in reasons]
    assert np.array_equal(pixels[others], np.stack([STEPS.pixels(read_image(paths[row])) for row in others]))
    assert not pixels[[3, 10]].any()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_resized_is_skipped(tmp_path: Path, workers: int) -> None:
    paths = pictures(tmp_path, count=5)
    Image.new("RGB", (100, 2), "red").save(paths[2])
    _, reasons, rows = decoded(paths, workers=workers, steps=StripsTakeTooMuch(resize=8, crop=(8, 8)))
    assert rows == list(range(5))
    assert reasons == {2: "cannot be brought to the size of the model (MemoryError)"}


def test_the_shared_file_is_gone_afterwards(tmp_path: Path) -> None:
    with Decoder(pictures(tmp_path, count=3), preprocessing=STEPS, batch_size=2, workers=1) as decoder:
        file = decoder.shared_file
        next(iter(decoder.batches(np.arange(3))))
        assert file.exists()
    assert not file.exists()


def test_batches_that_fit_nowhere_are_refused() -> None:
    huge = Preprocessing(resize=8192, crop=(8192, 8192))
    with (
        pytest.raises(BackboneError, match="^batch_size: "),
        Decoder(["a.png"], preprocessing=huge, batch_size=1_000_000, workers=0),
    ):
        pass


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(BackboneError, match="^batch_size"):
        Decoder(["a.png"], preprocessing=STEPS, batch_size=0, workers=0)
