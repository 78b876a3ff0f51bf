"""The demonstration: real skin images, three cohorts, three methods, no setting tuned.

The features come with the distribution `calcode-demo-data`, which is apart from this one because its licence is
non-commercial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from calcode.baselines import METHODS, Roles
from calcode.cohorts import Cohort, FeatureFile, open_features
from calcode.datasets.pad_ufes_20 import CLASSES as SHARED_CLASSES
from calcode.errors import FeatureFileError
from calcode.method.model import Calcode
from calcode.report import MethodResult, ReportCohort
from calcode.report.cohort import CohortFigures, cohort_figures

TITLE = "Which diseases does a conformal predictor miss?"
#: What was tried and on which images, for readers who see the page for the first time.
INTRODUCTION = (
    "For a picture of a skin lesion, a small image-text model ranks the possible diagnoses. Split APS, an ordinary "
    "conformal predictor, turns the ranking into a set that should miss the true diagnosis for at most 5 % of the "
    "images. CALCoDe does the same with more care: it looks at similar images, protects diseases that would be missed, "
    "and may defer to a clinician.",
    "Both were calibrated on dermoscopic images from Vienna and Queensland (HAM10000) and tried on three groups of "
    "other images: held-out images of the same clinics, smartphone photographs from Brazil (PAD-UFES-20), and images "
    "of a practice in Queensland after calibrating on Vienna alone.",
)
#: Where the features come from, for the end of the page.
NOTES = (
    "Images: HAM10000 (Tschandl, Rosendahl, Kittler 2018, CC BY-NC 4.0) and PAD-UFES-20 (Pacheco and others 2020, "
    "CC BY 4.0). Only embeddings of them are used; they come with calcode-demo-data, CC BY-NC 4.0.",
    "Encoder: lite0-derm, a small image-text model trained on other skin images. It is no foundation model, and the "
    "figures say nothing about one.",
    "Every setting is the default of calcode; none was tuned on these images.",
)
_MISSING = (
    "calcode_demo_data: the demonstration features are not installed; in a checkout of the repository run "
    "'pip install ./demo-data' or 'make install' (they are a distribution of their own: CC BY-NC 4.0)"
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Which images a model is fitted on, and which it decides on.

    Attributes
    ----------
    name : str
        As in the study of the paper's settings.
    short, title, description : str
        As `name`, `title` and `description` in `ReportCohort`.
    shifted : bool
        Whether the images differ from the calibration images by more than chance.
    select : callable
        All images in, the images with the fitted roles and the test images out.
    """

    name: str
    short: str
    title: str
    description: str
    shifted: bool
    select: Callable[[Cohort], tuple[Cohort, Cohort]]


def _of_dataset(images: Cohort, name: str) -> Cohort:
    return images[images.column("dataset") == name]


def _ham(images: Cohort) -> tuple[Cohort, Cohort]:
    ham = _of_dataset(images, "ham10000")
    return ham, ham.with_role("test")


def _pad(images: Cohort) -> tuple[Cohort, Cohort]:
    # The source loses its other classes, the target its one diagnosis outside the label space.
    shared = images.restrict(SHARED_CLASSES).in_space_only()
    return _of_dataset(shared, "ham10000"), _of_dataset(shared, "padufes20")


def _rosendahl(images: Cohort) -> tuple[Cohort, Cohort]:
    ham = _of_dataset(images, "ham10000")
    there = ham.column("site") == "rosendahl"
    return ham[~there], ham[there]


SETTINGS = (
    Setting(
        name="HAM",
        short="held-out images",
        title="Held-out images: HAM10000, the same clinics",
        description="Dermoscopy from Vienna and Queensland, all seven diseases, from the same clinics as the "
        "calibration images.",
        shifted=False,
        select=_ham,
    ),
    Setting(
        name="PAD",
        short="smartphone photographs",
        title="Smartphone photographs: PAD-UFES-20",
        description="Photographs taken with smartphones in Brazil, the five diseases shared with HAM10000: another "
        "device and another population than the dermoscopic calibration images.",
        shifted=True,
        select=_pad,
    ),
    Setting(
        name="ROSENDAHL",
        short="images of an unseen practice",
        title="An unseen practice: HAM10000, the images of Rosendahl",
        description="Dermoscopy from the practice of Cliff Rosendahl in Queensland, all seven diseases. The model was "
        "fitted on images from Vienna alone: the same kind of image, another place.",
        shifted=True,
        select=_rosendahl,
    ),
)


def demo_features() -> FeatureFile:
    """The feature file of the demonstration, or an error that says how to get it."""
    try:
        import calcode_demo_data
    except ImportError as error:
        raise FeatureFileError(_MISSING) from error
    return open_features(Path(calcode_demo_data.path()) / "lite0-derm.parquet")


def class_titles(features: FeatureFile) -> Mapping[str, str]:
    """What the short names of the classes stand for."""
    prompts = features.prompts
    return MappingProxyType(dict(zip(prompts.classes, prompts.label_texts or prompts.classes, strict=True)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Three methods on one cohort: the setting and the figures of its page."""

    setting: Setting
    figures: CohortFigures

    @property
    def small_classes(self) -> dict[str, int]:
        """Classes with too few answered images to be called the worst, and how many they have."""
        summary = self.figures.guarded.summary
        return {row.name: row.coverage.n for row in summary.classwise if row.coverage.n < summary.min_n}


def compare(setting: Setting, images: Cohort, *, titles: Mapping[str, str]) -> Comparison:
    """Fit on the source roles, decide on the test images, and put two simpler methods beside it.

    Split APS answers for every image; the localized sets are CALCoDe's own before the guard, with its audit.

    Parameters
    ----------
    setting : Setting
    images : Cohort
        All demonstration images.
    titles : mapping of str to str
        What the classes' names stand for.
    """
    source, test = setting.select(images)
    roles = Roles(
        reference=source.with_role("reference").evidence,
        validation=source.with_role("validation").evidence,
        gate=source.with_role("gate").evidence,
        calibration=source.with_role("calibration").evidence,
    )
    model = Calcode().fit(
        reference=roles.reference,
        validation=roles.validation,
        gate=roles.gate,
        calibration=roles.calibration,
    )
    decisions = model.decide(test.evidence)
    aps = METHODS["aps"]
    ordinary = aps.predict(
        roles,
        test.evidence,
        miscoverage=model.settings_.miscoverage,
        random_state=model.settings_.random_state,
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
        ordinary=MethodResult.without_audit(aps.record.title, ordinary.sets),
        metadata=test.metadata,
        class_titles=titles,
    )
    return Comparison(setting=setting, figures=cohort_figures(cohort))
