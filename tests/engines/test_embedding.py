from __future__ import annotations

import csv
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from backbones.stand_ins import CLASSES, BlackIsNothing, ColourModel, listing_of, pictures, prompts
from doc_blocks import ROOT
from PIL import Image
from processes import all_end, descendants

from calcode.backbones import Preprocessing, encode_images
from calcode.cohorts import Prompts, open_features
from calcode.datasets import ImageListing
from calcode.datasets.images import read_image
from calcode.engines.embedding import EmbedJob, Progress, embed
from calcode.errors import BackboneError, EngineError


def direct(listing: ImageListing) -> np.ndarray:
    return encode_images(ColourModel(), [read_image(path) for path in listing.paths.tolist()])


def test_the_feature_file_holds_the_listing_and_the_embeddings(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=11))
    model = ColourModel()
    summary = embed(listing, backbone=model, prompts=prompts(), out=tmp_path / "out.parquet", workers=0)
    assert (summary.embedded, summary.resumed, summary.skipped) == (11, 0, ())
    features = open_features(tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    found = np.array(table["embedding"].to_pylist(), dtype=np.float32)
    assert np.array_equal(found, direct(listing))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert table["id"].to_pylist() == listing.ids.tolist()
    assert table["label_name"].to_pylist() == listing.label_names.tolist()
    assert table["site"].to_pylist()[:4] == ["east", "east", "east", None]
    assert table["age"].null_count == 4
    # No path, and so no name of a file, reaches the output.
    assert not any(str(tmp_path) in str(value) for column in table.to_pydict().values() for value in column)
    assert features.backbone == model.card.identity
    assert features.backbone == "colours @ 0123456789ab; shortest side 8 (bicubic), centre crop 8 x 8, RGB in [0, 1]"
    assert features.prompt_digest == prompts().digest
    cohort = features.read()
    assert cohort.evidence.labels is not None
    assert cohort.evidence.labels.tolist() == listing.labels.tolist()
    assert cohort.evidence.classes == CLASSES
    assert not (tmp_path / "out.parquet.unfinished").exists()
    assert not (tmp_path / "out.skipped.csv").exists()


def test_review_probabilities_of_the_listing_reach_their_column(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=4))
    listing = replace(listing, metadata={**listing.metadata, "review_probability": np.array([0.5, 1.0, np.nan, 0.0])})
    embed(listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "out.parquet", workers=0)
    found = open_features(tmp_path / "out.parquet").read().evidence.review_probability
    np.testing.assert_array_equal(found, [0.5, 1.0, np.nan, 0.0])


def test_unreadable_images_are_listed_and_left_out(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=9)
    Path(paths[2]).write_text("no image")
    listing = listing_of([*paths[:8], ""])
    summary = embed(listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "out.parquet", workers=1)
    assert summary.embedded == 7
    assert [entry.id for entry in summary.skipped] == ["id-2", "id-8"]
    assert open_features(tmp_path / "out.parquet").read().column("id").tolist() == [
        f"id-{row}" for row in (0, 1, 3, 4, 5, 6, 7)
    ]
    with (tmp_path / "out.skipped.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == ["id-2", "id-8"]
    assert rows[0]["path"] == paths[2]
    assert "not an image" in rows[0]["reason"]
    assert rows[1]["reason"] == "no such file"


def test_the_name_of_a_dicom_file_is_not_listed(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=3)
    secret = tmp_path / "Jane-Doe-1970.dcm"
    secret.write_bytes(b"\0" * 128 + b"DICM" + b"broken")
    listing = listing_of([*paths, str(secret)])
    summary = embed(listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "out.parquet", workers=0)
    assert [entry.id for entry in summary.skipped] == ["id-3"]
    assert "Jane" not in (tmp_path / "out.skipped.csv").read_text()
    assert "Jane" not in str(summary.skipped)


def test_an_embedding_that_is_no_number_is_listed(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=4)
    Image.new("RGB", (9, 9)).save(paths[1])
    summary = embed(
        listing_of(paths), backbone=BlackIsNothing(), prompts=prompts(), out=tmp_path / "out.parquet", workers=0
    )
    assert [(entry.id, "NaN" in entry.reason) for entry in summary.skipped] == [("id-1", True)]
    assert open_features(tmp_path / "out.parquet").n_rows == 3


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    told: list[Progress] = []
    listing = listing_of([*pictures(tmp_path, count=9), ""])
    embed(
        listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "a.parquet", workers=0, progress=told.append
    )
    assert [entry.done for entry in told] == [4, 8, 10]
    assert told[-1].skipped == 1
    assert all(entry.total == 10 and entry.images_per_second > 0 for entry in told)


def test_an_interrupted_job_goes_on_where_it_was(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=22))

    def stop(progress: Progress) -> None:
        if progress.done >= 8:
            raise KeyboardInterrupt

    first, second = ColourModel(), ColourModel()
    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        embed(listing, backbone=first, prompts=prompts(), out=out, workers=0, progress=stop)
    assert not out.exists()
    summary = embed(listing, backbone=second, prompts=prompts(), out=out, workers=0)
    assert summary.resumed == 8
    assert summary.embedded == 22
    assert len(second.seen) == 14
    whole = tmp_path / "whole.parquet"
    embed(listing, backbone=ColourModel(), prompts=prompts(), out=whole, workers=0)
    assert pq.read_table(out).equals(pq.read_table(whole))


def interrupted(listing: ImageListing, out: Path, *, after: int) -> None:
    """A run that embeds some images and is stopped."""

    def stop(progress: Progress) -> None:
        if progress.done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(listing, backbone=ColourModel(), prompts=prompts(), out=out, workers=0, progress=stop)


def test_a_listing_that_grew_meanwhile_keeps_what_was_done(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=14))
    out = tmp_path / "out.parquet"
    interrupted(listing[4:], out, after=4)
    # Rows 4 to 7 are done; 4 is no longer wanted, and the others stand elsewhere.
    grown = listing[[0, 7, 1, 5, 2, 6, 3]]
    model = ColourModel()
    assert embed(grown, backbone=model, prompts=prompts(), out=out, workers=0).resumed == 3
    found = np.array(pq.read_table(out)["embedding"].to_pylist(), dtype=np.float32)
    assert np.array_equal(found, direct(grown))
    assert len(model.seen) == 4


def test_an_image_that_changed_since_the_interrupted_run_is_embedded_again(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=12)
    listing = listing_of(paths)
    out = tmp_path / "out.parquet"
    interrupted(listing, out, after=8)
    Image.new("RGB", (9, 9), "white").save(paths[5])
    model = ColourModel()
    summary = embed(listing, backbone=model, prompts=prompts(), out=out, workers=0)
    assert summary.resumed == 7
    assert len(model.seen) == 5
    found = np.array(pq.read_table(out)["embedding"].to_pylist(), dtype=np.float32)
    assert np.array_equal(found, direct(listing))


def test_an_image_that_is_gone_since_the_interrupted_run_is_left_out(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=12)
    out = tmp_path / "out.parquet"
    interrupted(listing_of(paths), out, after=8)
    Path(paths[5]).unlink()
    summary = embed(listing_of(paths), backbone=ColourModel(), prompts=prompts(), out=out, workers=0)
    assert [(entry.id, entry.reason) for entry in summary.skipped] == [("id-5", "no such file")]


def test_another_model_does_not_go_on_with_the_work_of_this_one(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=12))
    out = tmp_path / "out.parquet"
    interrupted(listing, out, after=8)
    other = ColourModel(Preprocessing(resize=9, crop=(9, 9)))
    with pytest.raises(EngineError, match="holds an unfinished job that differs in backbone"):
        embed(listing, backbone=other, prompts=prompts(), out=out, workers=0)


def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=12)
    Path(paths[11]).write_text("no image")
    out = tmp_path / "out.parquet"
    interrupted(listing_of(paths), out, after=8)
    folder = tmp_path / "out.parquet.unfinished"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert file.name == "lock" or stat.S_IMODE(file.stat().st_mode) == 0o600, file
    embed(listing_of(paths), backbone=ColourModel(), prompts=prompts(), out=out, workers=0)
    for name in ("out.parquet", "out.prompts.safetensors", "out.skipped.csv"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


FULL = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from backbones.stand_ins import ColourModel, listing_of, prompts
from calcode.engines.embedding import embed
from calcode.errors import OutputError

def fill(progress=None):
    # From now on the disk takes no more than some bytes per file.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))

paths = open({paths!r}).read().split("\\n")
if {at_the_end}:
    fill()
try:
    embed(listing_of(paths), backbone=ColourModel(), prompts=prompts(), out={out!r}, workers=0, progress=fill)
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path: Path, at_the_end: bool) -> None:
    paths = pictures(tmp_path, count=30)
    (tmp_path / "paths.txt").write_text("\n".join(paths))
    out = tmp_path / "out.parquet"
    if at_the_end:
        interrupted(listing_of(paths), out, after=30)
    facts = {"tests": str(ROOT / "tests"), "paths": str(tmp_path / "paths.txt"), "out": str(out)}
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(at_the_end=at_the_end, **facts)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert "the disk is full; nothing was written" in done.stdout
    assert not out.exists()
    assert [file.name for file in tmp_path.rglob("*.part")] == []
    model = ColourModel()
    summary = embed(listing_of(paths), backbone=model, prompts=prompts(), out=out, workers=0)
    assert summary.embedded == 30
    assert len(model.seen) == (0 if at_the_end else 30)
    assert not (tmp_path / "out.parquet.unfinished").exists()


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from backbones.stand_ins import ColourModel, listing_of, prompts
import calcode.engines.embedding as embedding
from calcode.engines.embedding import embed

embedding._SHARD_SECONDS = 0.0

class Stalled(ColourModel):
    def submit(self, pixels):
        print(len(pixels), flush=True)
        if len(self.seen) >= {most}:
            time.sleep(300)
        return super().submit(pixels)

if __name__ == "__main__":
    paths = open({paths!r}).read().split("\\n")
    embed(listing_of(paths), backbone=Stalled(), prompts=prompts(), out={out!r}, workers=2)
    print("finished", flush=True)
"""


def start(folder: Path, *, paths: list[str], most: int) -> subprocess.Popen[str]:
    (folder / "paths.txt").write_text("\n".join(paths))
    script = folder / "job.py"
    facts = {"tests": str(ROOT / "tests"), "paths": str(folder / "paths.txt"), "out": str(folder / "out.parquet")}
    script.write_text(SCRIPT.format(most=most, **facts))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes through /proc")
def test_a_killed_job_loses_nothing_does_nothing_twice_and_leaves_no_process(tmp_path: Path) -> None:
    paths = pictures(tmp_path, count=40)
    job = start(tmp_path, paths=paths, most=28)
    unfinished = tmp_path / "out.parquet.unfinished"
    deadline = time.monotonic() + 240
    while len(list(unfinished.glob("*.json"))) < 4:  # the plan and three shards
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = descendants(job.pid)
    os.kill(job.pid, signal.SIGKILL)
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    assert not (tmp_path / "out.parquet").exists()
    assert len(workers) >= 2
    assert all_end(workers), "a worker outlived its parent"

    job = EmbedJob(
        listing_of(paths), backbone=ColourModel(), prompts=prompts(), out=tmp_path / "out.parquet", progress=None
    )
    job.resume()
    kept = 40 - len(job.todo)
    assert 12 <= kept < 40
    again = start(tmp_path, paths=paths, most=len(paths))
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 0
    assert sum(int(line) for line in printed.split() if line.isdigit()) == 40 - kept
    listing = listing_of(paths)
    embed(listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "whole.parquet", workers=0)
    assert pq.read_table(tmp_path / "out.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    assert not unfinished.exists()


def test_inputs_that_do_not_fit_are_refused_before_any_work(tmp_path: Path) -> None:
    listing = listing_of(pictures(tmp_path, count=4))
    model = ColourModel()
    other = Prompts(text=np.ones((3, 1, 7)), temperature=1.0, classes=CLASSES)
    out = tmp_path / "out.parquet"
    with pytest.raises(BackboneError, match="^prompts: 7 dimensions"):
        embed(listing, backbone=model, prompts=other, out=out)
    with pytest.raises(BackboneError, match=r"^out: .* must end in \.parquet"):
        embed(listing, backbone=model, prompts=prompts(), out=tmp_path / "out.csv")
    with pytest.raises(BackboneError, match="^listing: the id 'id-0' occurs more than once"):
        embed(listing[[0, 1, 0]], backbone=model, prompts=prompts(), out=out)
    with pytest.raises(BackboneError, match="^listing: there is no image"):
        embed(listing[:0], backbone=model, prompts=prompts(), out=out)
    out.write_text("precious")
    with pytest.raises(BackboneError, match="exists already"):
        embed(listing, backbone=model, prompts=prompts(), out=out)
    assert out.read_text() == "precious"
    assert model.seen == []


def test_a_folder_of_nothing_readable_is_an_error_not_an_empty_file(tmp_path: Path) -> None:
    listing = replace(listing_of(pictures(tmp_path, count=3)), paths=np.full(3, ""))
    with pytest.raises(BackboneError, match="no image could be read"):
        embed(listing, backbone=ColourModel(), prompts=prompts(), out=tmp_path / "out.parquet", workers=0)
    assert [entry.name for entry in tmp_path.iterdir() if "out" in entry.name] == []
