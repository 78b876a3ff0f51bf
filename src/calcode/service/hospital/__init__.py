"""The hospital's standards: images by DICOM, answers as DICOM structured reports and FHIR resources.

Nothing here is loaded unless the site file has a table `[dicom]` or `[[deliveries]]`.
"""

from importlib import import_module

from calcode.errors import ServiceError


def require_libraries() -> None:
    """Raise if the DICOM libraries are not installed: at the start, not at the first image."""
    for name in ("pydicom", "pynetdicom", "highdicom"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ServiceError(
                f"[dicom], [[deliveries]]: {name} is not installed; pip install 'calcode[hospital]'"
            ) from error
