"""Split APS beside a model, where a feature file holds the images that the model was calibrated on."""

from __future__ import annotations

from calcode.baselines.aps import RECORD
from calcode.baselines.split import closed_sets, threshold
from calcode.cohorts import FeatureFile
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode
from calcode.method.roles import embeddings_digest
from calcode.method.scores import aps_scores
from calcode.report import MethodResult


def split_aps(model: Calcode, features: FeatureFile, decisions: Decisions) -> MethodResult | None:
    """What split APS says about the decided images, or None without the model's calibration images.

    Parameters
    ----------
    model : Calcode
    features : FeatureFile
        Looked through for the calibration role.
    decisions : Decisions
        The model's own, whose scores serve split APS too.
    """
    calibration = _calibration_of(model, features)
    if calibration is None:
        return None
    scores = aps_scores(robust_probabilities(calibration.prompt_logits, trim=model.settings_.trim))
    limit = threshold(scores, calibration.require_labels(), miscoverage=model.settings_.miscoverage)
    return MethodResult.without_audit(RECORD.title, closed_sets(decisions.scores, limit))


def _calibration_of(model: Calcode, features: FeatureFile) -> Evidence | None:
    """The calibration images, if they are those that the model remembers by their digest."""
    if "calibration" not in features.role_counts:
        return None
    cohort = features.read(role="calibration", classes=model.classes_, columns=[])
    if cohort.evidence.labels is None:
        return None
    evidence = cohort.in_space_only().evidence
    remembered = model.manifest_["calibration"]["embeddings"]
    return evidence if embeddings_digest(evidence.embeddings) == remembered else None
