"""Data sets in the form their owners publish: readers, splits, templates, and a check before long work."""

from __future__ import annotations

from calcode.datasets.check import CheckReport, check_listing
from calcode.datasets.duplicates import duplicates, without_duplicates
from calcode.datasets.generic import CsvColumns, read_class_folders, read_csv_images
from calcode.datasets.images import Unreadable, image_or_reason
from calcode.datasets.listing import ImageListing
from calcode.datasets.registry import DATASETS, read_dataset
from calcode.datasets.templates import PromptTemplates, load_templates

__all__ = [
    "DATASETS",
    "CheckReport",
    "CsvColumns",
    "ImageListing",
    "PromptTemplates",
    "Unreadable",
    "check_listing",
    "duplicates",
    "image_or_reason",
    "load_templates",
    "read_class_folders",
    "read_csv_images",
    "read_dataset",
    "without_duplicates",
]
