"""Files from strangers: special files are never opened, and bombs are refused before they are unpacked."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import warnings
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import write_csv, write_dicom, write_image
from datasets.deadly import length_or_death
from doc_blocks import ROOT
from PIL import Image

from calcode.datasets import check_listing, load_templates, read_class_folders, read_csv_images
from calcode.datasets.images import read_image
from calcode.datasets.workers import CRASHED, WorkerPool
from calcode.errors import CalcodeWarning, DatasetError, ImageError

# Whatever hangs is ended.
pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in folders")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One image per class, and next to them pipes, devices and a link that leads back."""
    for number, name in enumerate(("mel", "nv")):
        write_image(tmp_path / "skin" / name / f"{name}-1.png", shade=40 * number)
    skin = tmp_path / "skin"
    os.mkfifo(skin / "mel" / "pipe.png")
    os.mkfifo(skin / "mel" / "pipe.dcm")
    os.mkfifo(skin / "mel" / "pipe")
    (skin / "nv" / "z.dcm").symlink_to("/dev/zero")
    (skin / "nv" / "zero").symlink_to("/dev/zero")
    (skin / "nv" / "again").symlink_to(skin)
    return skin


def test_a_folder_with_pipes_devices_and_loops_is_listed(folder: Path) -> None:
    listing = read_class_folders(folder)
    assert listing.ids.tolist() == ["mel-1", "nv-1"]
    assert "pipes, devices or sockets with the ending of an image, left out: 3" in listing.notes


def test_a_name_that_is_not_text_is_left_out(tmp_path: Path) -> None:
    write_image(tmp_path / "mel" / "good.png", shade=40)
    good = (tmp_path / "mel" / "good.png").read_bytes()
    try:
        with open(os.fsencode(tmp_path / "mel") + b"/bad\xff.png", "wb") as file:
            file.write(good)
    except OSError:
        pytest.skip("file names are text here")
    listing = read_class_folders(tmp_path)
    assert listing.ids.tolist() == ["good"]
    assert listing.notes == ("images whose names are not UTF-8 text, left out: 1",)


def test_a_table_cannot_name_what_is_not_in_the_folder(folder: Path) -> None:
    os.mkfifo(folder.parent / "outside.dcm")
    write_image(folder.parent / "secret.png", shade=9)
    rows = [
        ["/dev/zero"],
        ["../outside.dcm"],
        [str(folder.parent / "outside.dcm")],
        ["../secret.png"],
        [str(folder.parent / "secret.png")],
        ["mel/pipe.png"],
        ["nv/z.dcm"],
        ["nul\0byte.png"],
        ["mel/mel-1.png"],
    ]
    table = write_csv(folder / "list.csv", ["path"], rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        listing = read_csv_images(table, classes=["mel", "nv"])
    assert listing.has_file.tolist() == [False] * 8 + [True]
    assert not any("zero" in name for name in listing.ids.tolist()[:1])


@pytest.mark.parametrize("name", ["pipe.png", "pipe.dcm", "pipe"])
def test_a_pipe_is_not_an_image(folder: Path, name: str) -> None:
    with pytest.raises(ImageError, match="a pipe, not a file"):
        read_image(folder / "mel" / name)


def test_a_device_is_not_an_image(folder: Path) -> None:
    for name in ("z.dcm", "zero"):
        with pytest.raises(ImageError, match="a device, not a file"):
            read_image(folder / "nv" / name)
    with pytest.raises(ImageError, match="cannot be opened"):
        read_image("nul\0byte.png")


def png_bomb(path: Path, *, side: int) -> Path:
    """One bit a pixel, all black: some hundred kilobytes for billions of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    lines = zlib.compress(bytes((side // 8 + 1) * 1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b""))
    return path


def tiff_bomb(path: Path, *, side: int) -> Path:
    """A header that claims a huge image over a few bytes."""
    entries = [(256, side), (257, side), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, side), (279, 16)]
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    path.write_bytes(
        struct.pack("<2sHI", b"II", 42, 24) + bytes(16) + struct.pack("<H", len(entries)) + fields + bytes(4)
    )
    return path


@pytest.mark.parametrize(("maker", "ending"), [(png_bomb, ".png"), (tiff_bomb, ".tiff")])
@pytest.mark.parametrize("side", [11_700, 60_000])
def test_images_of_too_many_pixels_are_refused_before_decoding(
    tmp_path: Path, maker: object, ending: str, side: int
) -> None:
    bomb = maker(tmp_path / f"bomb{ending}", side=side)  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="more than 134,217,728 pixels"):
            read_image(bomb)


DECODE = """
import resource, sys
from calcode.datasets.images import read_image
from calcode.errors import ImageError
import pydicom, PIL.Image
from pydicom.pixels.utils import pixel_array
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_image(sys.argv[1])
except ImageError as error:
    print(error.reason)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def reason_and_megabytes(path: Path) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    reason, megabytes = done.stdout.splitlines()
    return reason, int(megabytes)


def rle_bomb(path: Path) -> Path:
    """A small file that claims 65,535 x 65,535 pixels, run-length encoded."""
    import pydicom
    from pydicom.encaps import encapsulate
    from pydicom.uid import RLELossless

    write_dicom(path, np.zeros((4, 4), dtype=np.uint8), bits=8)
    header = pydicom.dcmread(path)
    header.Rows = header.Columns = 65_535
    header.file_meta.TransferSyntaxUID = RLELossless
    header.PixelData = encapsulate([struct.pack("<16I", 1, 64, *[0] * 14) + b"\x81\x00" * 190_000])
    header["PixelData"].is_undefined_length = True
    header.save_as(path)
    return path


def deflated_bomb(path: Path, *, preamble: bool = True) -> Path:
    """A deflated file whose content is a gigabyte of nothing."""
    import pydicom
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    write_dicom(path, np.zeros((4, 4), dtype=np.uint8), bits=8)
    header = pydicom.dcmread(path)
    header.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    header.save_as(path)
    length = int(pydicom.filereader.read_file_meta_info(path).FileMetaInformationGroupLength)
    meta = path.read_bytes()[0 if preamble else 132 : 132 + 12 + length]
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    zeros = bytes(1 << 24)
    path.write_bytes(meta + b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush())
    return path


@pytest.mark.parametrize(
    ("maker", "reason"),
    [
        (rle_bomb, "more than 134,217,728 pixels"),
        (deflated_bomb, "unpacks to far more"),
        (partial(deflated_bomb, preamble=False), "unpacks to far more"),
    ],
)
def test_a_dicom_bomb_takes_no_memory(tmp_path: Path, maker: object, reason: str) -> None:
    pytest.importorskip("pydicom")
    bomb = maker(tmp_path / "bomb.dcm")  # type: ignore[operator]
    assert bomb.stat().st_size < 6_000_000
    said, megabytes = reason_and_megabytes(bomb)
    assert reason in said
    assert megabytes < 200


def test_an_honest_deflated_file_is_read(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    path = write_dicom(tmp_path / "a.dcm", np.arange(256, dtype=np.uint8).reshape(16, 16), bits=8)
    plain = read_image(path)
    header = pydicom.dcmread(path)
    header.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    header.save_as(path)
    assert np.array_equal(read_image(path), plain)


def test_formats_that_run_programs_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(path)
    with pytest.raises(ImageError, match="of a format that is not read here"):
        read_image(path)


def test_a_worker_that_dies_costs_one_item() -> None:
    with WorkerPool(length_or_death, workers=2, crashed=lambda text: -1) as pool:
        tasks = [pool.submit(["a", "bb"]), pool.submit(["ccc", "deadly", "d"]), pool.submit(["eeee"])]
        assert [pool.results(task) for task in tasks] == [[1, 2], [3, -1, 1], [4]]
        assert pool.results(pool.submit(["f"])) == [1]


@pytest.mark.parametrize("from_file", [True, False])
def test_a_script_is_not_run_again_by_the_workers(tmp_path: Path, from_file: bool) -> None:
    write_image(tmp_path / "images" / "mel" / "one.png", shade=70)
    script = (
        "from calcode.datasets import check_listing, read_class_folders\n"
        "print('begun')\n"
        "print([one.kind for one in check_listing(read_class_folders('images')).findings])\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *(["script.py"] if from_file else ["-"])],
        input=None if from_file else script,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["begun", "[]"]


def test_an_image_that_ends_its_process_is_a_finding_of_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mel", "nv"):
        write_image(tmp_path / name / f"{name}-1.png", shade=70)
    Image.new("RGB", (200, 200), (1, 2, 3)).save(tmp_path / "nv" / "nv-2.png")
    # Workers are new interpreters: this file, found on their path, stands for a decoder with a defect.
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os\n"
        "import calcode.datasets.images as images\n"
        "allowed = images.require_pixels\n"
        "images.require_pixels = lambda *size: os._exit(9) if size == (200, 200) else allowed(*size)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT / 'src'}")
    report = check_listing(read_class_folders(tmp_path), workers=1)
    (unreadable,) = [finding for finding in report.findings if finding.kind == "unreadable"]
    assert unreadable.examples == (f"nv-2: {CRASHED}",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (b"classes = " + b"[" * 5_000, "nested too deeply|not a TOML file"),
        (b"classes = " + b"9" * 5_000, "not a TOML file"),
        (b'classes = ["a"]\nlabel_texts = ["a"]\ntemplates = 3', "a list of strings"),
    ],
)
def test_hostile_templates_are_one_kind_of_error(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "t.toml"
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=reason):
        load_templates(file)
