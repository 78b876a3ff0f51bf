"""Site recalibration from reviewed local cases (SITE.md)."""

from __future__ import annotations

from calcode.method.model_file import load_model
from calcode.site.model import SiteModel
from calcode.site.review import Quota, archive_quota, coin, predicted_exclusions, representatives, uniform

__all__ = [
    "Quota",
    "SiteModel",
    "archive_quota",
    "coin",
    "load_model",
    "predicted_exclusions",
    "representatives",
    "uniform",
]
