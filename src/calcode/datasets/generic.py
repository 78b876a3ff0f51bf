"""Your own data sets: images with a CSV file, or images in folders named after their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from calcode.arrays import AnyArray, TextArray
from calcode.datasets.dicom import DICOM_SUFFIXES, content_id, is_dicom
from calcode.datasets.folder import IMAGE_SUFFIXES, MISSING, checked_folder, image_files, read_columns
from calcode.datasets.listing import Dataset, ImageListing, LabelMap
from calcode.errors import DatasetError

#: Our names for the columns with a reserved meaning, and their names in feature files.
_USUAL = {"id": "id", "path": "path", "label": "label_name", "group": "group", "role": "role"}
_SUBGROUPS = ("site", "age", "sex", "fitzpatrick", "anatomic_site")


@dataclass(frozen=True, kw_only=True)
class CsvColumns:
    """Names of the columns of a CSV file; None takes the usual name if the file has such a column.

    Attributes
    ----------
    id, path, label, group, role : str or None
        Usual names: `id`, `path`, `label_name`, `group`, `role`, as in feature files. At least one of id and path must
        be present: the path of an image relative to the folder, or its file name.
    metadata : mapping of str to str
        From our name to the file's name, for `site`, `age`, `sex`, `fitzpatrick`, `anatomic_site` and any other column
        to keep. These five are also found under their own names.
    """

    id: str | None = None
    path: str | None = None
    label: str | None = None
    group: str | None = None
    role: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def named(self) -> list[str]:
        """Columns that the caller named, which must therefore exist."""
        core = [getattr(self, one.name) for one in fields(self) if one.name != "metadata"]
        return [name for name in core if name is not None] + list(self.metadata.values())


def read_csv_images(
    csv_file: str | Path,
    *,
    images: str | Path | None = None,
    columns: CsvColumns | None = None,
    classes: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
    outside: Sequence[str] = (),
    dicom_key: bytes = b"",
) -> ImageListing:
    """Read images listed in a CSV file.

    Parameters
    ----------
    csv_file : path-like
    images : path-like, optional
        Folder to which paths are relative; default: the folder of the CSV file. A path that does not exist there is
        searched by its file name in all folders below.
    columns : CsvColumns, optional
    classes : sequence of str, optional
        The label space; default: all labels that occur and are not in `outside`, in alphabetical order.
    label_map : mapping of str to str, optional
        Maps the file's labels to class names.
    outside : sequence of str
        Labels known to be outside the label space (after `label_map`); any other unknown label is reported.
    dicom_key : bytes
        Secret for the ids of DICOM files without an id column (`content_id`).

    Returns
    -------
    ImageListing
        The id is taken from the CSV file, else it is the file's stem. DICOM files, whose names may identify a patient,
        get a hash of the content instead of the stem.
    """
    path = Path(csv_file)
    if not path.is_file():
        raise DatasetError(f"csv_file: {path} is not a file; give the CSV file that lists the images")
    # The file's columns under our names, without those that the file lacks.
    columns = columns or CsvColumns()
    where = {ours: getattr(columns, ours) or usual for ours, usual in _USUAL.items()}
    where |= {**{name: name for name in _SUBGROUPS}, **columns.metadata}
    taken = sorted(_USUAL.keys() & columns.metadata.keys())
    if taken:
        raise DatasetError(f"columns: metadata names {taken}, which have arguments of their own")
    table = read_columns(path, needed=list(dict.fromkeys(columns.named())), optional=set(where.values()))
    if where["id"] not in table and where["path"] not in table:
        raise DatasetError(
            f"columns: {path} has neither a column {where['id']!r} nor {where['path']!r}; say which column "
            f"holds the ids or the paths of the images"
        )
    if where["label"] not in table and classes is None:
        raise DatasetError(
            f"columns: {path} has no column {where['label']!r}; say which column holds the labels, or give the class "
            "names of the task"
        )
    table = {ours: table[name] for ours, name in where.items() if name in table}
    files = image_files(checked_folder(path.parent if images is None else images))
    empty = np.full(len(next(iter(table.values()))), "")
    ids = table.get("id", empty)
    names = table.get("path", ids)
    # Looked up among the files of the folder, so that a name that is not there is never opened.
    exact = files.existing(Path(name).as_posix() for name in names.tolist())
    paths = np.where(exact != "", exact, files.paths_of(_stem(name) for name in names.tolist()))
    # If there is no file, a name without an ordinary image suffix could be a patient's name.
    stems = [
        _stem(name) if path or Path(name).suffix.lower() in IMAGE_SUFFIXES - DICOM_SUFFIXES else f"row-{row}"
        for row, (name, path) in enumerate(zip(names.tolist(), paths.tolist(), strict=True), start=1)
    ]
    source = table.get("label", empty)
    label_names = LabelMap(inside=label_map or {}).names(source)
    return ImageListing(
        dataset=path.stem,
        classes=_classes(label_names, classes=classes, outside=outside),
        ids=np.where(ids != "", ids, _ids(stems, paths.tolist(), key=dicom_key)),
        paths=paths,
        label_names=label_names,
        source_labels=source,
        groups=table.get("group", empty),
        metadata={name: _typed(values) for name, values in table.items() if name not in _USUAL},
        roles=table.get("role"),
        outside=tuple(outside),
        notes=files.notes(used=paths),
    ).announced()


def read_class_folders(
    folder: str | Path, *, classes: Sequence[str] | None = None, outside: Sequence[str] = (), dicom_key: bytes = b""
) -> ImageListing:
    """Read images in folders named after their classes: `folder/melanoma/017.jpg`.

    Parameters
    ----------
    folder : path-like
    classes, outside, dicom_key
        As in `read_csv_images`; the folder names are the labels.

    Returns
    -------
    ImageListing
        The id is the file's stem, or `class/stem` if a stem occurs in several folders; DICOM files get a hash of their
        content. There are no groups: images of one patient cannot be kept together.
    """
    files = image_files(checked_folder(folder))
    inside = [one for one in files.relative if "/" in one]
    if not inside:
        raise DatasetError(
            f"folder: no images in folders below {folder}; put the images of every class into a folder named "
            f"after it, or list them in a CSV file"
        )
    label_names = np.array([one.partition("/")[0] for one in inside], dtype=np.str_)
    paths = files.existing(inside)
    counts = Counter(Path(one).stem for one in inside)
    plain = [Path(one).stem if counts[Path(one).stem] == 1 else Path(one).with_suffix("").as_posix() for one in inside]
    loose = len(files.relative) - len(inside)
    notes = (f"images in no class folder, left out: {loose}",) if loose else ()
    return ImageListing(
        dataset=Path(folder).resolve().name,
        classes=_classes(label_names, classes=classes, outside=outside),
        ids=_ids(plain, paths.tolist(), key=dicom_key),
        paths=paths,
        label_names=label_names,
        source_labels=label_names,
        groups=np.full(len(paths), ""),
        outside=tuple(outside),
        notes=(*notes, *files.odd),
    ).announced()


def _classes(label_names: TextArray, *, classes: Sequence[str] | None, outside: Sequence[str]) -> tuple[str, ...]:
    if classes is not None:
        return tuple(classes)
    found = sorted(set(label_names.tolist()) - {"", *outside})
    if not found:
        raise DatasetError("classes: no labels to take them from; give the class names of the task")
    return tuple(found)


def _stem(name: str) -> str:
    """File name without an image suffix; an id that contains a dot keeps it."""
    file = Path(name)
    return file.stem if file.suffix.lower() in IMAGE_SUFFIXES else file.name


def _ids(plain: Sequence[str], paths: Sequence[str], *, key: bytes) -> TextArray:
    """The plain id of every image, or a content hash for DICOM files, whose names may identify a patient.

    Copies of a DICOM file have the same content: the second becomes `dicom-...-2`, and so on.
    """
    seen: Counter[str] = Counter()
    ids = []
    for name, path in zip(plain, paths, strict=True):
        hashed = bool(path) and is_dicom(Path(path))
        one = content_id(Path(path), key=key) if hashed else name
        seen[one] += 1
        ids.append(f"{one}-{seen[one]}" if hashed and seen[one] > 1 else one)
    return np.array(ids, dtype=np.str_)


def _typed(values: TextArray) -> AnyArray:
    """Numbers if all values that are present are numbers, else text; shape (n,)."""
    texts = values.tolist()
    try:
        return np.array([np.nan if one.lower() in MISSING else float(one) for one in texts])
    except ValueError:
        return np.where(np.isin(np.char.lower(values), list(MISSING)), "", values)


def read_single_csv(folder: Path) -> ImageListing:
    """Read images listed in the only CSV file of their folder."""
    found = sorted(checked_folder(folder).glob("*.csv"))
    if len(found) != 1:
        raise DatasetError(
            f"folder: {len(found)} CSV files in {folder}, one is needed; name yours with --csv, or in Python "
            f"with read_csv_images"
        )
    return read_csv_images(found[0])


CSV = Dataset(
    name="csv",
    title="Your own images, listed in a CSV file",
    needs="one CSV file with path or id, and label_name, group, role where known",
    read=read_single_csv,
)
FOLDERS = Dataset(
    name="folders",
    title="Your own images, in folders named after their classes",
    needs="one folder of images per class",
    read=read_class_folders,
)
