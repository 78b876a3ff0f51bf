"""Explain the decision on a photograph without a network: `calcode demo --image`.

The tower is in `calcode-demo-data`: the encoder of the demonstration's features, with its weights rounded to fit into
5 MB. It is a small encoder of skin lesions; other photographs should be deferred, and often are.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from calcode.backbones import load_backbone
from calcode.backbones.photograph import photograph_evidence
from calcode.demo.cohorts import demo_features, fitted_on
from calcode.errors import FeatureFileError
from calcode.method.explain import Explanation, explain, single_answer_record


def explain_image(path: str | os.PathLike[str], *, n_neighbours: int = 10) -> Explanation:
    """Decide on a photograph of a skin lesion with a model fitted on the demonstration's HAM10000 features.

    Parameters
    ----------
    path : path-like
        A JPEG, PNG, TIFF, ... or DICOM file.
    n_neighbours : int
        Number of reference images to name.

    Raises
    ------
    ImageError
        If the file cannot be read as an image.
    FeatureFileError
        If the demonstration data are not installed, or do not include the tower.
    """
    features = demo_features()
    # The photograph comes first, so that a wrong path is reported before anything is fitted. The rounded tower
    # replaces the encoder that made the features; the card next to it says how closely they agree.
    evidence = photograph_evidence(
        path, backbone=load_backbone(tower_path()), prompts=features.prompts, name=features.backbone
    )
    ham = features.read(role=["reference", "validation", "gate", "calibration", "test"])
    model = fitted_on(ham)
    found = explain(
        evidence,
        model=model,
        reference=ham.with_role("reference"),
        titles=features.prompts.titles,
        n_neighbours=n_neighbours,
    )
    if found.action != "label":
        return found
    return replace(found, record=single_answer_record(model, ham.with_role("test").evidence))


def tower_path() -> Path:
    """Path of the ONNX file in the demonstration data."""
    import calcode_demo_data

    if not hasattr(calcode_demo_data, "tower"):
        raise FeatureFileError(
            "calcode_demo_data: the installed demonstration data come without the image tower; install them again "
            "with 'pip install ./demo-data' or 'make install'"
        )
    return Path(calcode_demo_data.tower())
