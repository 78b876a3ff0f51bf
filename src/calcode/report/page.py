"""Render sections as one self-contained page: escaped templates, inlined style sheet, no script."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from calcode import __version__
from calcode.files import replacing
from calcode.metrics import wording
from calcode.report import charts
from calcode.report.parts import Section

if TYPE_CHECKING:
    from jinja2 import Environment

DEVICE_NOTE = "Research software, not a medical device."
#: Libraries whose versions may change a digit; the page names them.
_LIBRARIES = ("numpy", "scipy", "scikit-learn")


@cache
def style_sheet() -> str:
    """The style sheet of every page."""
    return files("calcode.report").joinpath("style.css").read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """The template environment of this folder; all printed values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("calcode.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals.update(
        lanes=charts.lanes, markers=charts.MARKERS, percent=wording.percent, short_percent=wording.short_percent
    )
    return made


def render_page(sections: Sequence[Section], *, title: str) -> str:
    """The page as text; the same sections give the same text.

    Parameters
    ----------
    sections : sequence of Section
        In the order of the page.
    title : str

    Examples
    --------
    >>> from calcode.report.parts import Text
    >>> page = render_page([Section(key="one", title="a < b", parts=(Text(sentences=("c & d",)),))], title="Page")
    >>> "a &lt; b" in page, "<p>c &amp; d</p>" in page, "<script" in page
    (True, True, False)
    """
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    template = environment().get_template("base.html")
    return template.render(
        sections=sections,
        title=title,
        style=style_sheet(),
        version=__version__,
        device_note=DEVICE_NOTE,
        made_with=f"calcode {__version__}, Python {platform.python_version()}, {libraries}",
    )


def write_page(path: str | os.PathLike[str], sections: Sequence[Section], *, title: str) -> None:
    """Write the page to a file atomically.

    Parameters
    ----------
    path : path-like
    sections, title
        As in `render_page`.
    """
    page = render_page(sections, title=title)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
