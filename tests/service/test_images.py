"""Images in requests: decoded in a child, embedded by an ONNX tower, kept as files and erased with the case."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from service.pictures import TOWER, make_picture_site
from service.sites import Site, running
from sqlalchemy import func, select
from typer.testing import CliRunner

from calcode.backbones import load_backbone
from calcode.backbones.backbone import encode_images
from calcode.cli.service import group as commands
from calcode.service.images import Images, opened_images
from calcode.service.log import Transaction
from calcode.service.operations import erase, opened, retain
from calcode.service.problems import Problem
from calcode.service.service import Service
from calcode.service.settings import read_site, require_files
from calcode.service.tables import DECISION, SECRET_PART

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def picture_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_picture_site(tmp_path_factory.mktemp("pictures"))


def png(seed: int, size: tuple[int, int] = (40, 30)) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def pictures(service: Service) -> set[Path]:
    """The files that the service keeps."""
    return set((Path(service.site.data) / "images").iterdir())


def test_a_picture_is_decided_like_its_embedding_kept_and_erased(picture_site: Site) -> None:
    content = png(1)
    with running(picture_site) as (service, call):
        sent = {"image": base64.b64encode(content).decode(), "group": "anna", "image_id": "1"}
        answer = call("POST", "/v1/decisions", json=sent)
        assert answer.status_code == 200, answer.text
        pixels = np.asarray(Image.open(io.BytesIO(content)))
        vector = encode_images(load_backbone(TOWER), [pixels])[0]
        plain = call("POST", "/v1/decisions", json={"embedding": vector.tolist(), "image_id": "2"}).json()
        assert answer.json()["set"] == plain["set"]
        assert answer.json()["p_audit"] == plain["p_audit"]
        (kept,) = pictures(service)
        assert kept.name.startswith(hashlib.sha256(content).hexdigest())
        assert kept.read_bytes() == content
        assert kept.stat().st_mode & 0o077 == 0
    with opened(picture_site.settings) as log:
        assert erase(picture_site.settings, log, group="anna", decision=None, why="test") == 3
    assert not kept.exists()


def test_a_picture_of_two_patients_stays_until_both_are_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an earlier version left it: pictures were named by their content alone, and the same one had one file."""
    site, content = make_picture_site(tmp_path), png(4)
    with running(site) as (service, call):
        for group in ("anna", "berta", "clara"):
            sent = {"image": base64.b64encode(content).decode(), "group": group, "image_id": group}
            assert call("POST", "/v1/decisions", json=sent).status_code == 200
        kept = site.settings.path("images") / hashlib.sha256(content).hexdigest()
        kept.write_bytes(content)
        with service.database.writing() as connection:
            of_all = SECRET_PART.update().where(SECRET_PART.c.name == "image")
            connection.execute(of_all.values(content=kept.name.encode()))
    with opened(site.settings) as log:
        erase(site.settings, log, group="anna", decision=None, why="test")
        assert kept.exists()
        with log.database.writing() as connection:
            only = (
                SECRET_PART.c.name == "image",
                SECRET_PART.c.seq == select(func.min(DECISION.c.seq) + 1).scalar_subquery(),
            )
            connection.execute(SECRET_PART.update().where(*only).values(delete_after="2000-01-01"))
        assert retain(site.settings, log) == 1
        assert kept.exists()
        with monkeypatch.context() as broken:
            broken.setattr(Transaction, "append", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                erase(site.settings, log, group="clara", decision=None, why="test")
        assert kept.exists(), "nothing was erased"
        erase(site.settings, log, group="clara", decision=None, why="test")
    assert not kept.exists()


def test_an_old_picture_that_no_record_names_is_deleted_and_a_young_or_named_one_stays(tmp_path: Path) -> None:
    """A crash between the file and the COMMIT leaves one that nobody could erase."""
    site = make_picture_site(tmp_path)
    with running(site) as (service, call):
        sent = {"image": base64.b64encode(png(21)).decode(), "image_id": "named"}
        assert call("POST", "/v1/decisions", json=sent).status_code == 200
        (named,) = pictures(service)
    orphan, half, young = (named.with_name(name) for name in ("orphan", ".half.0123456789ab.part", "young"))
    day = 86_400
    for path, age in ((named, 3 * day), (orphan, day + 600), (half, 2 * day), (young, day - 600)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    for wanted, left in ((2, {named, young}), (0, {named, young})):
        shown = CliRunner().invoke(commands, ["retain", str(site.file), "--json"])
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.output)["unrecorded_pictures"] == wanted
        assert set(named.parent.iterdir()) == left
    assert "Deleted 0 pictures that no record names" in CliRunner().invoke(commands, ["retain", str(site.file)]).output
    with opened(site.settings) as log:
        told = [json.loads(row.body) for page in log.pages() for row in page if row.kind == "erasure"]
    assert [(body["why"], body["pictures"]) for body in told] == [("no record", 2)]


def test_a_clinician_sees_the_picture_encoded_anew_and_that_is_recorded(picture_site: Site) -> None:
    from PIL.PngImagePlugin import PngInfo

    pixels = np.random.default_rng(5).integers(256, size=(20, 30, 3), dtype=np.uint8)
    hidden = PngInfo()
    hidden.add_text("Comment", "<script>Anna Example</script>")
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG", pnginfo=hidden)
    with running(picture_site) as (service, call):
        sent = {"image": base64.b64encode(sink.getvalue()).decode(), "image_id": "seen"}
        id = call("POST", "/v1/decisions", json=sent).json()["id"]
        shown = call("GET", f"/v1/decisions/{id}/image", as_="clinician")
        assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
        assert b"Anna" in sink.getvalue()
        assert b"Anna" not in shown.content
        assert (np.asarray(Image.open(io.BytesIO(shown.content))) == pixels).all()
        views = [r for page in service.log.pages() for r in page if r.kind == "case_viewed"]
        assert [(row.actor, json.loads(row.body)["what"]) for row in views] == [("test-clinician", "image")]
        erase(picture_site.settings, service.log, group=None, decision=id, why="test")
        assert call("GET", f"/v1/decisions/{id}/image", as_="clinician").status_code == 404


def test_pictures_that_cannot_be_decoded_are_refused_and_not_kept(picture_site: Site) -> None:
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    with running(picture_site) as (service, call):
        before = pictures(service)
        for content in (b"no picture", png(2)[:200], bomb.getvalue()):
            sent = {"image": base64.b64encode(content).decode(), "image_id": "x"}
            answer = call("POST", "/v1/decisions", json=sent)
            assert answer.status_code == 422, answer.text
            assert answer.json()["detail"].startswith("image: ")
        for text in ("###", "\u00e9"):
            assert call("POST", "/v1/decisions", json={"image": text, "image_id": "x"}).status_code == 422
        assert pictures(service) == before
        assert (
            call("POST", "/v1/decisions", json={**sent, "image": base64.b64encode(png(3)).decode()}).status_code == 200
        )


@pytest.mark.parametrize("name", ["biomedclip", "openai/clip-vit-base-patch32", "hf-hub:owner/model", "towers/clip"])
def test_a_tower_is_a_file_a_folder_or_the_name_of_a_backbone(tmp_path: Path, name: str) -> None:
    file = make_picture_site(tmp_path).file
    file.write_text(file.read_text().replace(str(TOWER), name))
    folder = tmp_path / name
    if name == "towers/clip":
        # A folder that is not there reads like a name on the hub, as it does for `calcode embed`.
        folder.mkdir(parents=True)
    site = read_site(file)
    require_files(site)
    assert site.lines[0].image_tower == (str(folder) if folder.exists() else name)


def test_the_folder_of_a_backbone_takes_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the backbone needs torch: make test-torch")
    pytest.importorskip("transformers", reason="the backbone needs transformers: make test-torch")
    from backbones.tiny_models import make_torchvision_importable, save_clip

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_torchvision_importable()
    save_clip(tmp_path / "clip")
    with opened_images(str(tmp_path / "clip"), tmp_path / "images", deidentify=True) as images:
        _, vector = images.embed(png(5), lambda vector: vector)
    pixels = np.asarray(Image.open(io.BytesIO(png(5))))
    np.testing.assert_allclose(vector, encode_images(load_backbone(tmp_path / "clip"), [pixels])[0], atol=1e-6)


def test_a_picture_that_takes_too_long_or_too_much_memory_is_refused_and_the_next_one_is_read(tmp_path: Path) -> None:
    large, slow = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (11_500, 11_500)).save(large, "PNG", compress_level=1)
    # A small file that takes long: the last scan of a progressive JPEG again and again.
    Image.new("RGB", (4000, 4000)).save(slow, "JPEG", progressive=True)
    content = slow.getvalue()
    scans = content[:-2] + content[content.rindex(b"\xff\xda") : -2] * 4000 + content[-2:]

    def refusal(images: Images, picture: bytes) -> str:
        with pytest.raises(Problem) as refused:
            images.embed(picture, lambda vector: vector)
        assert refused.value.status == 422
        name, vector = images.embed(png(5), lambda vector: vector)
        assert np.isfinite(vector).all()
        assert [path.name for path in (tmp_path / "images").iterdir()] == [name]
        (tmp_path / "images" / name).unlink()
        return refused.value.detail

    with opened_images(str(TOWER), tmp_path / "images", deidentify=True, seconds=1) as images:
        assert "too much time" in refusal(images, scans)
    with opened_images(str(TOWER), tmp_path / "images", deidentify=True, n_bytes=2**28) as images:
        assert "MemoryError" in refusal(images, large.getvalue())
    # The service's own limits leave room for the largest picture.
    with opened_images(str(TOWER), tmp_path / "images", deidentify=True) as images:
        images.embed(large.getvalue(), lambda vector: vector)


def test_a_request_without_a_record_of_its_own_leaves_no_picture(picture_site: Site) -> None:
    """Nobody could erase it later: it belongs to no case."""
    sent = {"image": base64.b64encode(png(11)).decode(), "image_id": "first"}
    with running(picture_site) as (service, call):
        before = pictures(service)
        for refused in ({"image": sent["image"]}, {**sent, "prompt_digest": "0" * 64}):
            assert call("POST", "/v1/decisions", json=refused).status_code == 422
        assert pictures(service) == before
        assert call("POST", "/v1/decisions", json=sent).status_code == 200
        (kept,) = pictures(service) - before
        again = call("POST", "/v1/decisions", json=sent)
        assert again.headers["Idempotent-Replay"] == "true"
        other = call("POST", "/v1/decisions", json={**sent, "image": base64.b64encode(png(12)).decode()})
        assert other.status_code == 409
        assert pictures(service) == {*before, kept}


def test_erasing_one_case_leaves_the_same_picture_of_another(picture_site: Site) -> None:
    sent = {"image": base64.b64encode(png(13)).decode()}
    with running(picture_site) as (service, call):
        ids = [
            call("POST", "/v1/decisions", json={**sent, "image_id": name, "group": name}).json()["id"]
            for name in ("berta", "clara")
        ]
        erase(picture_site.settings, service.log, group="berta", decision=None, why="test")
        shown = [call("GET", f"/v1/decisions/{id}/image", as_="clinician").status_code for id in ids]
        assert shown == [404, 200]


def test_a_dicom_file_sent_by_http_is_kept_without_identifiers(picture_site: Site) -> None:
    pytest.importorskip("pydicom")
    from pydicom import dcmread
    from pydicom.uid import DeflatedExplicitVRLittleEndian
    from service.dicom_objects import IDENTIFIERS, encoded, photograph

    folder = picture_site.settings.path("images")
    deflated = photograph(2)
    deflated.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    with running(picture_site) as (_, call):
        before = set(folder.iterdir())
        sent = {"image": base64.b64encode(encoded(photograph(1))).decode(), "image_id": "dicom"}
        assert call("POST", "/v1/decisions", json=sent).status_code == 200
        packed = {"image": base64.b64encode(encoded(deflated)).decode(), "image_id": "packed"}
        refused = call("POST", "/v1/decisions", json=packed)
    assert (refused.status_code, "deflated" in refused.json()["detail"]) == (422, True)
    (kept,) = set(folder.iterdir()) - before
    assert not any(word.encode() in kept.read_bytes() for word in IDENTIFIERS)
    assert dcmread(kept).PixelData == photograph(1).PixelData
