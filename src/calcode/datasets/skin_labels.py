"""The seven diagnoses of HAM10000: the label space that all dermatology data sets are mapped to."""

from __future__ import annotations

SKIN_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
