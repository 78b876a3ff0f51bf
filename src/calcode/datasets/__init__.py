"""Data sets as their owners publish them: readers, splits, templates, and a check before the long work."""

from __future__ import annotations

from calcode.datasets.camelyon17 import camelyon17_setting, read_camelyon17
from calcode.datasets.check import CheckReport, Finding, Level, check_listing
from calcode.datasets.duplicates import DuplicateGroup, DuplicateReport, duplicates, without_duplicates
from calcode.datasets.generic import CsvColumns, read_class_folders, read_csv_images
from calcode.datasets.ham10000 import ham10000_setting, read_ham10000, rosendahl_setting
from calcode.datasets.images import Unreadable, image_or_reason, read_image
from calcode.datasets.isic2018 import read_isic2018_test
from calcode.datasets.isic2019 import read_isic2019_test, read_isic2019_training
from calcode.datasets.listing import Dataset, ImageListing, Published
from calcode.datasets.pad_ufes_20 import read_pad_ufes_20
from calcode.datasets.registry import DATASETS, read_dataset
from calcode.datasets.settings import external_setting, isic2019_setting, pad_ufes_20_setting
from calcode.datasets.templates import PromptTemplates, load_templates, packaged_templates
from calcode.errors import DatasetError, ImageError

__all__ = [
    "DATASETS",
    "CheckReport",
    "CsvColumns",
    "Dataset",
    "DatasetError",
    "DuplicateGroup",
    "DuplicateReport",
    "Finding",
    "ImageError",
    "ImageListing",
    "Level",
    "PromptTemplates",
    "Published",
    "Unreadable",
    "camelyon17_setting",
    "check_listing",
    "duplicates",
    "external_setting",
    "ham10000_setting",
    "image_or_reason",
    "isic2019_setting",
    "load_templates",
    "packaged_templates",
    "pad_ufes_20_setting",
    "read_camelyon17",
    "read_class_folders",
    "read_csv_images",
    "read_dataset",
    "read_ham10000",
    "read_image",
    "read_isic2018_test",
    "read_isic2019_test",
    "read_isic2019_training",
    "read_pad_ufes_20",
    "rosendahl_setting",
    "without_duplicates",
]
