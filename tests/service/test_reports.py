"""What leaves for the hospital, and what is kept of its objects: de-identified images, structured reports, FHIR."""

from __future__ import annotations

import io
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("highdicom")

from pydicom import Dataset, dcmread
from service.archives import require
from service.dicom_objects import IDENTIFIERS, encoded, photograph

from calcode.datasets.dicom import MAX_PIXELS, PIXEL_TAGS
from calcode.datasets.images import read_image
from calcode.files import canonical_json
from calcode.service.audit.chain import GENESIS, Record
from calcode.service.exports import audit_event
from calcode.service.hospital.fhir import report_bundle
from calcode.service.hospital.objects import KEPT_TAGS, REPORT_TAGS, take_apart
from calcode.service.hospital.statement import NOTICE, Statement
from calcode.service.hospital.structured_report import structured_report
from calcode.service.problems import Problem
from calcode.service.projections import KINDS

SET = Statement(
    decision="6f" * 16,
    seq=30_699,
    at="2026-11-15T22:00:00.123456Z",
    line="skin",
    model="0b2c" * 16,
    action="set",
    reason="none",
    diagnoses=("melanoma", "naevus of a kind with a name of more than sixteen letters, ä"),
    n_classes=7,
    promises=("Promised always: a first sentence.", "Observed only: a second one."),
    names={"melanoma": "malignant melanoma of the skin"},
)
ONE = replace(SET, action="label", diagnoses=("naevus",))
DEFERRED = replace(SET, action="defer", reason="low_support", diagnoses=())
FULL = replace(SET, action="defer", reason="full_set", diagnoses=("melanoma", "naevus"))
ALARM = replace(SET, reason="alarm")
NAME = "ab" * 32
every_answer = pytest.mark.parametrize(
    "statement", [SET, ONE, DEFERRED, FULL, ALARM], ids=["set", "one", "deferred", "full set", "alarm"]
)


# ---------------------------------------------------------------------- what is kept of an object


def grey_with_tables() -> Dataset:
    """A grey image with a table of grey values, whose explanation is free text."""
    image = photograph(2)
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    del image.PlanarConfiguration
    image.PixelData = np.arange(30 * 40, dtype=np.uint16).astype(np.uint8).tobytes()
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [256, 0, 8])
    table.add_new("LUTData", "OW", np.arange(256, dtype=np.uint16)[::-1].tobytes())
    table.LUTExplanation = "lut of Wunderlich"
    image.VOILUTSequence = [table]
    return image


@pytest.mark.parametrize("image", [photograph(1), grey_with_tables()], ids=["colour", "grey with a table"])
def test_a_kept_object_has_the_pixels_and_no_identifier(image: Dataset, tmp_path: Path) -> None:
    content = encoded(image)
    assert all(word.encode("latin-1") in content for word in IDENTIFIERS if not word.startswith("lut"))
    received = take_apart(content, pseudonym=NAME, deidentify=True)
    for word in IDENTIFIERS:
        assert word.encode() not in received.stored
        assert word.encode("utf-16") not in received.stored
    kept = dcmread(io.BytesIO(received.stored))
    assert not any(element.tag.is_private for element in kept)
    assert {element.keyword for element in kept if element.tag.group < 0x28} == {
        *KEPT_TAGS,
        "SOPClassUID",
        "SOPInstanceUID",
        "PatientIdentityRemoved",
        "DeidentificationMethod",
    }
    (tmp_path / "sent.dcm").write_bytes(content)
    (tmp_path / "kept.dcm").write_bytes(received.stored)
    assert np.array_equal(read_image(tmp_path / "kept.dcm"), read_image(tmp_path / "sent.dcm"))


def test_identifiers_are_handed_on_for_the_secret_parts_only() -> None:
    received = take_apart(encoded(photograph(1)), pseudonym=NAME, deidentify=True)
    assert (received.patient, received.study, received.instance) == ("PATIENT-4711", "1.2.3.4711.1", "1.2.3.4711.1.1.1")
    assert "Wunderlich^J\\u00f6rg" in received.report_header or "Wunderlich^Jörg" in received.report_header
    again = take_apart(encoded(photograph(1)), pseudonym=NAME, deidentify=True)
    assert again == received
    assert take_apart(encoded(photograph(3)), pseudonym=NAME, deidentify=True).pixels != received.pixels


def test_de_identification_can_be_switched_off() -> None:
    content = encoded(photograph(1))
    assert take_apart(content, pseudonym=NAME, deidentify=False).stored == content


def _without_pixels() -> bytes:
    image = photograph(1)
    del image.PixelData
    return encoded(image)


def _with_text_in_pixels() -> bytes:
    image = photograph(1)
    image.BurnedInAnnotation = "YES"
    return encoded(image)


def _without_study() -> bytes:
    image = photograph(1)
    del image.StudyInstanceUID
    return encoded(image)


def _nested(depth: int) -> bytes:
    """Sequences in sequences, which a reader follows until it has no stack left."""
    image = photograph(1)
    inner = Dataset()
    for _ in range(depth):
        outer = Dataset()
        outer.VOILUTSequence = [inner]
        inner = outer
    image.VOILUTSequence = [inner]
    return encoded(image)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no object", "cannot be read as DICOM"),
        (encoded(photograph(1))[:700], ""),
        (_without_pixels(), "no pixel data"),
        (_with_text_in_pixels(), "text is part of its pixels"),
        (_without_study(), "no Study Instance UID"),
    ],
    ids=["no object", "cut", "no pixels", "text", "no study"],
)
def test_what_cannot_be_taken_is_refused_without_quoting_it(content: bytes, words: str) -> None:
    with pytest.raises(Problem) as caught:
        take_apart(content, pseudonym=NAME, deidentify=True)
    assert caught.value.status == 422
    assert words in caught.value.detail
    assert not any(word in caught.value.detail for word in IDENTIFIERS)


def test_sequences_within_sequences_are_not_kept() -> None:
    stored = dcmread(io.BytesIO(take_apart(_nested(60), pseudonym=NAME, deidentify=True).stored))
    assert [list(item.keys()) for item in stored.VOILUTSequence] == [[]]


# ---------------------------------------------------------------------- structured reports


@pytest.fixture(scope="module")
def header() -> str:
    return take_apart(encoded(photograph(1)), pseudonym=NAME, deidentify=True).report_header


def texts(report: Dataset) -> list[str]:
    return [item.TextValue for item in report.ContentSequence if item.ValueType == "TEXT"]


@pytest.mark.parametrize(
    "statement", [SET, ONE, DEFERRED, FULL, ALARM], ids=lambda entry: f"{entry.action}-{entry.reason}"
)
def test_a_report_says_the_answer_in_words_and_in_codes(statement: Statement, header: str) -> None:
    report = dcmread(io.BytesIO(structured_report(statement, header)))
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    said = "\n".join(texts(report))
    assert NOTICE in said
    assert statement.model in said
    for promise in statement.promises:
        assert promise in said
    for name in statement.diagnoses:
        assert statement.spelled(name) in said
    assert ("leaves this case to a clinician" in said) == (statement.action == "defer")
    assert ("An alarm is open" in said) == (statement.reason == "alarm")
    (group,) = report.ContentSequence[-1].ContentSequence
    coded = [
        item.ConceptCodeSequence[0]
        for item in group.ContentSequence
        if item.ValueType == "CODE" and item.ConceptNameCodeSequence[0].CodeMeaning == "Possible diagnosis"
    ]
    assert [code.get("LongCodeValue", code.get("CodeValue")) for code in coded] == list(statement.diagnoses)
    (source,) = [item for item in group.ContentSequence if item.ValueType == "IMAGE"]
    assert source.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == "1.2.3.4711.1.1.1"


def test_a_report_belongs_to_the_study_and_the_patient_and_nobody_has_verified_it(header: str) -> None:
    report = dcmread(io.BytesIO(structured_report(SET, header)))
    assert (report.PatientID, str(report.PatientName), report.PatientBirthDate) == (
        "PATIENT-4711",
        "Wunderlich^Jörg",
        "19510304",
    )
    assert (report.StudyInstanceUID, report.AccessionNumber) == ("1.2.3.4711.1", "ACC-0815")
    assert (report.VerificationFlag, report.PreliminaryFlag, report.ContentQualification) == (
        "UNVERIFIED",
        "PRELIMINARY",
        "RESEARCH",
    )


def test_the_same_decision_gives_the_same_bytes_and_another_one_another_uid(header: str) -> None:
    first = structured_report(SET, header)
    assert structured_report(SET, header) == first
    another = dcmread(io.BytesIO(structured_report(replace(SET, decision="70" * 16), header)))
    mine = dcmread(io.BytesIO(first))
    assert another.SOPInstanceUID != mine.SOPInstanceUID
    assert another.SeriesInstanceUID == mine.SeriesInstanceUID


def test_a_header_with_broken_or_missing_values_still_gives_a_report() -> None:
    image = photograph(1)
    image.PatientSex = "X"
    del image.PatientName, image.StudyDate, image.ReferringPhysicianName, image.PatientID
    received = take_apart(encoded(image), pseudonym=NAME, deidentify=True)
    assert received.patient is None
    assert dcmread(io.BytesIO(structured_report(SET, received.report_header))).PatientSex == ""


@pytest.mark.parametrize("statement", [SET, DEFERRED], ids=lambda entry: entry.action)
def test_other_programs_read_the_report_and_find_no_error_in_it(
    statement: Statement, header: str, tmp_path: Path
) -> None:
    require("dsrdump", "dciodvfy")
    file = tmp_path / "report.dcm"
    file.write_bytes(structured_report(statement, header))
    shown = subprocess.run(["dsrdump", "+Pl", str(file)], capture_output=True, text=True, check=True).stdout
    assert statement.conclusion in shown
    assert "Verification Flag   : UNVERIFIED" in shown
    checked = subprocess.run(["dciodvfy", str(file)], capture_output=True, text=True, check=False)
    assert "ComprehensiveSR" in checked.stderr
    assert [line for line in checked.stderr.splitlines() if line.startswith("Error")] == []


# ---------------------------------------------------------------------- FHIR


@pytest.mark.parametrize(
    "statement", [SET, ONE, DEFERRED, FULL, ALARM], ids=lambda entry: f"{entry.action}-{entry.reason}"
)
def test_fhir_resources_are_valid_and_hide_nothing(statement: Statement) -> None:
    resources = pytest.importorskip("fhir.resources.R4B.bundle")
    sent = report_bundle(statement, patient="17", patient_system="urn:oid:1.2.3", study="1.2.3", image="1.2.3.4")
    bundle = resources.Bundle.model_validate(sent)
    observation, report = (entry.resource for entry in bundle.entry)
    assert report.result[0].reference == bundle.entry[0].fullUrl
    assert statement.conclusion in report.conclusion
    assert NOTICE in report.conclusion
    shown = [part.valueCodeableConcept for part in observation.component or []]
    assert [concept.coding[0].code for concept in shown] == list(statement.diagnoses)
    assert [concept.text for concept in shown] == [statement.spelled(name) for name in statement.diagnoses]
    assert (observation.valueCodeableConcept is None) == (statement.action == "defer")
    assert (observation.dataAbsentReason is not None) == (statement.action == "defer")
    assert {entry.resource.status for entry in bundle.entry} == {"preliminary"}
    assert statement.model in observation.method.text
    assert report.imagingStudy[0].identifier.value == "urn:oid:1.2.3"


def test_a_bundle_sent_twice_names_the_same_identifiers() -> None:
    first, second = (report_bundle(SET, patient="17", patient_system=None, study=None, image=None) for _ in range(2))
    assert first == second
    conditions = [entry["request"]["ifNoneExist"] for entry in first["entry"]]
    assert len(set(conditions)) == 2
    for entry in first["entry"]:
        (identifier,) = entry["resource"]["identifier"]
        assert entry["request"]["ifNoneExist"] == f"identifier={identifier['system']}|{identifier['value']}"


def test_every_kind_of_record_is_a_valid_audit_event() -> None:
    resources = pytest.importorskip("fhir.resources.R4B.auditevent")
    for kind in sorted(KINDS):
        for group in (None, "0b2c" * 16):
            body = canonical_json({"id": "6f" * 16, "subject": "", "group": group})
            record = Record(7, SET.at, kind, "dicom:CAMERA", body, GENESIS, GENESIS)
            event = resources.AuditEvent.model_validate(audit_event(record, source="hospital/skin"))
            assert event.subtype[0].code == kind
            patients = [entity.what.identifier.value for entity in event.entity if entity.role is not None]
            assert patients == ([] if group is None else [group])
    assert audit_event(Record(7, SET.at, "case_viewed", "eva", body, GENESIS, GENESIS), source="x")["action"] == "R"


# ---------------------------------------------------------------------- the conformance statement

PAGE = (Path(__file__).parents[2] / "docs" / "dicom.md").read_text()


def test_the_conformance_statement_names_exactly_what_is_taken_and_answered() -> None:
    from calcode.service.hospital import conformance

    uids = set(re.findall(r"\| (1\.2\.840\.10008[\d.]+) \|", PAGE))
    assert uids == {conformance.VERIFICATION, *conformance.SOP_CLASSES, *conformance.TRANSFER_SYNTAXES}
    statuses = {int(code, 16) for code in re.findall(r"^\| (0x[0-9A-F]{4}) \|", PAGE, re.MULTILINE)}
    names = ("SUCCESS", "OUT_OF_RESOURCES", "CANNOT_UNDERSTAND", "OTHER_CONTENT", "FAILURE")
    assert statuses == {getattr(conformance, name) for name in names}
    assert set(conformance.offered_syntaxes()) <= set(conformance.TRANSFER_SYNTAXES)


def test_the_conformance_statement_lists_every_element_that_is_kept() -> None:
    kept = re.search(r"^Kept in `images/`: (.*?)\. Of the two", PAGE, re.MULTILINE)
    report = re.search(r"^Kept for the report: (.*?)\. `calcode", PAGE, re.MULTILINE)
    assert kept is not None
    assert report is not None
    assert set(re.findall(r"`(\w+)`", kept[1])) == {*KEPT_TAGS, *PIXEL_TAGS}
    assert set(re.findall(r"`(\w+)`", report[1])) == set(REPORT_TAGS)
    assert f"{MAX_PIXELS:,} pixels" in PAGE
