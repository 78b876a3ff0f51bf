"""The answer as a DICOM structured report: Comprehensive SR with template TID 1500 (PS3.16)."""

from __future__ import annotations

import io
from datetime import datetime

from highdicom import UID
from highdicom.coding_schemes import CodingSchemeIdentificationItem
from highdicom.sr import (
    AlgorithmIdentification,
    CodedConcept,
    ComprehensiveSR,
    DeviceObserverIdentifyingAttributes,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    QualitativeEvaluation,
    RelationshipTypeValues,
    SourceImageForMeasurementGroup,
    TextContentItem,
    TrackingIdentifier,
)
from pydicom import Dataset
from pydicom.sr.codedict import codes

from calcode import __version__
from calcode.service.hospital.objects import REPORT_TAGS
from calcode.service.hospital.statement import NOTICE, Statement, stable_uid

_SCHEME = "99CALCODE"
_CONCLUSION = CodedConcept("121077", "DCM", "Conclusion")
_COMMENT = CodedConcept("121106", "DCM", "Comment")
_WORDS = {"label": "One diagnosis", "set": "Set of diagnoses", "defer": "Deferred to a clinician"}
#: Longest meaning of a code (VR LO).
_MEANING = 64


def structured_report(statement: Statement, header: str) -> bytes:
    """Return the report as a DICOM file, with the same bytes at every call.

    Parameters
    ----------
    statement : Statement
    header : str
        DICOM JSON of the image's `REPORT_TAGS`: whose image it is and where the report belongs.
    """
    # The report needs all attributes of the image: those that were empty or broken are added as empty.
    image = Dataset.from_json(header)
    for name in REPORT_TAGS:
        if name not in image:
            setattr(image, name, "")
    if image.PatientSex not in ("", "F", "M", "O"):
        image.PatientSex = ""
    # The pixels are not here; a report needs to know only that the image has one frame.
    image.Rows = image.Columns = 1
    # In the time zone of the machine, like the dates of the image.
    at = datetime.fromisoformat(statement.at).astimezone()
    day, time = at.strftime("%Y%m%d"), at.strftime("%H%M%S.%f")
    document = ComprehensiveSR(
        evidence=[image],
        content=_content(statement, image),
        # One series for the answers of a line in a study, one instance for each image.
        series_instance_uid=stable_uid(f"{image.StudyInstanceUID}/{statement.line}"),
        series_number=9000,
        series_description=f"calcode {statement.line}"[:_MEANING],
        sop_instance_uid=statement.uid("report"),
        instance_number=statement.seq % (1 << 31) or 1,
        manufacturer="calcode",
        manufacturer_model_name="calcode",
        software_versions=__version__,
        content_qualification="RESEARCH",
        content_date=day,
        content_time=time,
        is_complete=True,
        is_verified=False,
        specific_character_set="ISO_IR 192",
        coding_schemes=[CodingSchemeIdentificationItem(_SCHEME, name="calcode", responsible_organization="calcode")],
    )
    document["InstanceCreationDate"].value, document["InstanceCreationTime"].value = day, time
    for equipment in document.get("ContributingEquipmentSequence", ()):
        equipment.ContributionDateTime = f"{day}{time}"
    target = io.BytesIO()
    document.save_as(target, enforce_file_format=True)
    return target.getvalue()


def _content(statement: Statement, image: Dataset) -> MeasurementReport:
    device = DeviceObserverIdentifyingAttributes(
        uid=UID(stable_uid(f"line/{statement.line}")),
        name="calcode",
        manufacturer_name="calcode",
        model_name=f"calcode {__version__}",
        serial_number=statement.model,
    )
    group = MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=UID(statement.uid("image")), identifier=statement.decision),
        algorithm_id=AlgorithmIdentification(
            name="calcode", version=__version__, parameters=[f"line {statement.line}", f"model {statement.model}"]
        ),
        qualitative_evaluations=[
            QualitativeEvaluation(_code("action", "Action"), _code(statement.action, _WORDS[statement.action])),
            QualitativeEvaluation(_code("reason", "Reason"), _code(statement.reason, statement.reason)),
            *(
                QualitativeEvaluation(_code("diagnosis", "Possible diagnosis"), _code(name, statement.spelled(name)))
                for name in statement.diagnoses
            ),
        ],
        source_images=[SourceImageForMeasurementGroup(image.SOPClassUID, image.SOPInstanceUID)],
    )
    report = MeasurementReport(
        observation_context=ObservationContext(
            observer_device_context=ObserverContext(
                observer_type=codes.DCM.Device, observer_identifying_attributes=device
            )
        ),
        procedure_reported=codes.SCT.ImagingProcedure,
        imaging_measurements=[group],
    )
    # TID 1500 can be extended: plain sentences are added where a viewer shows them first.
    said = [(_CONCLUSION, statement.conclusion), (_COMMENT, NOTICE), *((_COMMENT, text) for text in statement.promises)]
    said.append(
        (_COMMENT, f"Model {statement.model}, record {statement.seq} of the log, decision {statement.decision}.")
    )
    items = report[0].ContentSequence
    for place, (name, text) in enumerate(said, start=len(items) - 1):
        items.insert(place, TextContentItem(name, text, RelationshipTypeValues.CONTAINS))
    return report


def _code(value: str, meaning: str) -> CodedConcept:
    return CodedConcept(value, _SCHEME, meaning[:_MEANING])
