"""The picture of a case, kept with its record and shown to its reader, or a link to the site's own viewer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
from sqlalchemy import Connection, select

from calcode.service.admission import Case
from calcode.service.problems import Problem
from calcode.service.tables import SECRET_PART
from calcode.service.writer import Answer


def picture_file(connection: Connection, seq: int, folder: Path) -> Path | None:
    """The image file of a decision as it was sent; None if there was none, or it was erased.

    Parameters
    ----------
    connection : Connection
    seq : int
        Record of the decision.
    folder : Path
        Where the service keeps images.
    """
    query = select(SECRET_PART.c.content).where(SECRET_PART.c.seq == seq, SECRET_PART.c.name == "image")
    name = connection.execute(query).scalar()
    path = None if name is None else folder / bytes(name).decode()
    return path if path is not None and path.is_file() else None


def drop_unrecorded(folder: Path, case: Case, answer: Answer | Problem) -> None:
    """Delete the picture of a request that made no record: it was refused or is a replay.

    If a request ends in an exception, it is unknown whether a record exists; `drop_unrecorded_pictures` checks.
    """
    if isinstance(answer, Problem) or answer.replay:
        for part in case.parts:
            if part.name == "image":
                (folder / part.content.decode()).unlink(missing_ok=True)


def picture_png(path: Path) -> bytes | None:
    """Re-encode an image as PNG, so that only its pixels reach a browser; None if it is unreadable."""
    from PIL import Image

    from calcode.datasets import Unreadable, image_or_reason

    pixels = image_or_reason(path)
    if isinstance(pixels, Unreadable):
        return None
    sink = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(sink, "PNG")
    return sink.getvalue()


def viewer_link(connection: Connection, seq: int, template: str | None) -> str | None:
    """The address of a decision's study in the site's viewer; None without a template or a study.

    Parameters
    ----------
    connection : Connection
    seq : int
    template : str or None
        Address from the site file, with the placeholder {study}.
    """
    query = select(SECRET_PART.c.content).where(SECRET_PART.c.seq == seq, SECRET_PART.c.name == "identity")
    content = connection.execute(query).scalar()
    study = None if content is None else json.loads(bytes(content)).get("study")
    return None if template is None or study is None else template.replace("{study}", quote(study, safe=""))
