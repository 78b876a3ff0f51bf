"""The hospital's standards: images by DICOM, answers as DICOM structured reports and FHIR resources.

Nothing here is loaded unless the site file has a table `[dicom]` or `[[deliveries]]`.
"""
