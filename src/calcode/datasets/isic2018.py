"""ISIC 2018 task 3, test: 1,512 dermoscopy images in the seven diagnoses of HAM10000."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calcode.datasets.folder import image_files, needed_csv
from calcode.datasets.ham10000 import SKIN_CLASSES
from calcode.datasets.isic2019 import read_one_hot, without_metadata
from calcode.datasets.listing import Dataset, ImageListing, LabelMap, Published, announced

NAME = "isic2018-test"
#: An image that the organisers made to watch for cheating; no patient has that lesion.
SYNTHETIC = "ISIC_0035068"
PUBLISHED = Published(
    images=1511, labels={"MEL": 171, "NV": 908, "BCC": 93, "AKIEC": 43, "BKL": 217, "DF": 44, "VASC": 35}
)
_LABELS = LabelMap(classes=SKIN_CLASSES, inside={name.upper(): name for name in SKIN_CLASSES})


def read_isic2018_test(folder: str | Path) -> ImageListing:
    """The test images of ISIC 2018 task 3 without the one synthetic image among them.

    Parameters
    ----------
    folder : path-like
        Holds `ISIC2018_Task3_Test_GroundTruth.csv` and the images. The release names neither lesions nor
        patients.
    """
    path = needed_csv(folder, "ISIC2018_Task3_Test_GroundTruth.csv", dataset="ISIC 2018 task 3")
    ids, source = read_one_hot(path, labels=tuple(_LABELS.inside))
    real = ids != SYNTHETIC
    ids, source = ids[real], source[real]
    files = image_files(Path(folder))
    paths = files.paths_of(ids.tolist())
    groups, metadata = without_metadata(len(ids))
    dropped = int(np.count_nonzero(~real))
    notes = (f"the synthetic image {SYNTHETIC} was left out",) if dropped else ()
    return announced(
        ImageListing(
            dataset=NAME,
            classes=SKIN_CLASSES,
            ids=ids,
            paths=paths,
            label_names=_LABELS.names(source),
            source_labels=source,
            groups=groups,
            metadata={"site": groups, **metadata},
            expected=PUBLISHED,
            notes=notes + files.notes(used=paths),
        )
    )


DATASET = Dataset(
    name=NAME,
    title="ISIC 2018 task 3, test (dermoscopy)",
    needs="ISIC2018_Task3_Test_GroundTruth.csv and the JPEG files",
    read=read_isic2018_test,
    images=PUBLISHED.images,
    licence="CC BY-NC 4.0",
    templates="dermatology",
)
