"""From a photograph to an explained decision, without a network: `calcode demo --image`.

The tower comes with `calcode-demo-data`: the encoder behind the demonstration's features, its weights rounded to fit
into 5 MB. It is a small encoder of skin lesions; any other photograph should be deferred, and often is.
"""

from __future__ import annotations

import os
from pathlib import Path

from calcode.backbones import load_backbone
from calcode.backbones.backbone import encode_images
from calcode.cohorts import Cohort, FeatureFile
from calcode.demo.cohorts import class_titles, demo_features
from calcode.errors import FeatureFileError
from calcode.method.evidence import Evidence
from calcode.method.explain import Explanation, explain
from calcode.method.model import Calcode


def explain_image(path: str | os.PathLike[str], *, n_neighbours: int = 10) -> Explanation:
    """Decide on a photograph of a skin lesion with a model fitted on the demonstration's HAM10000 features.

    Parameters
    ----------
    path : path-like
        A JPEG, PNG, TIFF, ... or DICOM file.
    n_neighbours : int
        Reference images to name.

    Raises
    ------
    ImageError
        If the file cannot be read as an image.
    FeatureFileError
        If the demonstration data are not installed, or come without the tower.
    """
    # The photograph first: a wrong path is told before anything is fitted.
    features = demo_features()
    evidence = photograph_evidence(path, features=features)
    source = features.read(role=["reference", "validation", "gate", "calibration"])
    return explain(
        evidence,
        model=fitted_on(source),
        reference=source.with_role("reference"),
        titles=class_titles(features),
        n_neighbours=n_neighbours,
    )


def photograph_evidence(path: str | os.PathLike[str], *, features: FeatureFile) -> Evidence:
    """Evidence of one photograph by the demonstration's tower, with the prompts of its features."""
    from calcode.datasets import read_image

    image = read_image(path)
    prompts = features.prompts
    return Evidence.from_text(
        embeddings=encode_images(load_backbone(tower_path()), [image]),
        text=prompts.text,
        temperature=prompts.temperature,
        classes=prompts.classes,
        prompt_digest=prompts.digest,
        # The rounded tower stands for the encoder that made the features; the card beside it says how closely.
        backbone=features.backbone,
    )


def tower_path() -> Path:
    """The ONNX file of the demonstration data."""
    import calcode_demo_data

    if not hasattr(calcode_demo_data, "tower"):
        raise FeatureFileError(
            "calcode_demo_data: the installed demonstration data come without the image tower; install them again "
            "with 'pip install ./demo-data' or 'make install'"
        )
    return Path(calcode_demo_data.tower())


def fitted_on(source: Cohort) -> Calcode:
    """The method with its default settings on the four roles of the demonstration."""
    return Calcode().fit(
        reference=source.with_role("reference").evidence,
        validation=source.with_role("validation").evidence,
        gate=source.with_role("gate").evidence,
        calibration=source.with_role("calibration").evidence,
    )
