"""The demonstration: real skin images, three cohorts, three methods, no setting tuned.

The features are in the distribution `calcode-demo-data`, which is separate because its licence is
non-commercial.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calcode.baselines import METHODS
from calcode.cohorts import Cohort, FeatureFile, open_features
from calcode.errors import FeatureFileError
from calcode.method.model import Calcode
from calcode.report import ReportCohort
from calcode.report.cohort import CohortFigures, cohort_figures
from calcode.study.cohorts import select_cohorts
from calcode.study.specification import Setting, packaged_settings

TITLE = "Which diseases does a conformal predictor miss?"
#: What was tested and on which images, for first-time readers of the page.
INTRODUCTION = (
    "For a picture of a skin lesion, a small image-text model ranks the possible diagnoses. Split APS, an ordinary "
    "conformal predictor, turns the ranking into a set that should miss the true diagnosis for at most 5 % of the "
    "images. CALCoDe does the same with more care: it looks at similar images, protects diseases that would be missed, "
    "and may defer to a clinician.",
    "Both were calibrated on dermoscopic images from Vienna and Queensland (HAM10000) and tried on three groups of "
    "other images: held-out images of the same clinics, smartphone photographs from Brazil (PAD-UFES-20), and images "
    "of a practice in Queensland after calibrating on Vienna alone.",
)
#: Origin of the features, for the end of the page.
NOTES = (
    "Images: HAM10000 (Tschandl, Rosendahl, Kittler 2018, CC BY-NC 4.0) and PAD-UFES-20 (Pacheco and others 2020, "
    "CC BY 4.0). Only embeddings of them are used; they come with calcode-demo-data, CC BY-NC 4.0.",
    "Encoder: lite0-derm, a small image-text model trained on other skin images. It is no foundation model, and the "
    "figures say nothing about one.",
    "Every setting is the default of calcode; none was tuned on these images.",
)
#: The same settings as in studies/dermatology.toml.
SETTINGS: tuple[Setting, ...] = packaged_settings("dermatology")


def demo_features() -> FeatureFile:
    """The feature file of the demonstration; raise an error that says how to get it if it is missing."""
    try:
        import calcode_demo_data
    except ImportError as error:
        raise FeatureFileError(
            "calcode_demo_data: the demonstration features are not installed; in a checkout of the repository run "
            "'pip install ./demo-data' or 'make install' (they are a distribution of their own: CC BY-NC 4.0)"
        ) from error
    return open_features(Path(calcode_demo_data.path()) / "lite0-derm.parquet")


def compare(setting: Setting, images: Cohort, *, titles: Mapping[str, str]) -> CohortFigures:
    """Fit on the source roles, decide on the test images, and run two simpler methods on the same images.

    Split APS answers every image; the localized sets are CALCoDe's own sets before the guard, with its audit.

    Parameters
    ----------
    setting : Setting
    images : Cohort
        All demonstration images.
    titles : mapping of str to str
        Full names of the classes.
    """
    cohorts = select_cohorts(images, setting)
    roles, test = cohorts.roles, cohorts.target
    model = Calcode().fit(**roles.by_name)
    decisions = model.decide(test.evidence)
    aps = METHODS["aps"]
    ordinary = aps.predict(
        roles, test.evidence, miscoverage=model.settings_.miscoverage, random_state=model.settings_.random_state
    )
    labels = test.evidence.require_labels()
    cohort = ReportCohort(
        name=setting.short,
        title=setting.title,
        description=setting.description,
        shifted=setting.shifted,
        labels=labels,
        model=model,
        decisions=decisions,
        ordinary=(aps.record.title, ordinary.sets),
        metadata=test.metadata,
        class_titles=titles,
    )
    return cohort_figures(cohort)


def fitted_on(source: Cohort) -> Calcode:
    """The method with default settings, fitted on the four roles of the demonstration."""
    return Calcode().fit(
        reference=source.with_role("reference").evidence,
        validation=source.with_role("validation").evidence,
        gate=source.with_role("gate").evidence,
        calibration=source.with_role("calibration").evidence,
    )
