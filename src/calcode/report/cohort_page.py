"""The whole page, and the file it goes to."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from calcode import __version__
from calcode.errors import SettingsError
from calcode.files import replacing
from calcode.report.cohort_section import cohort_section
from calcode.report.figures import CohortFigures, cohort_figures
from calcode.report.inputs import ReportCohort
from calcode.report.markup import Html, bullets, element, joined, section
from calcode.report.overview import overview_section
from calcode.report.style import STYLE

DEVICE_NOTE = "Research software, not a medical device."
#: Libraries whose version may change a digit.
_LIBRARIES = ("numpy", "scipy", "scikit-learn")

_WORDS = (
    ("Coverage", "share of accepted images whose set holds the true label. An empty set is a miss."),
    (
        "Set size",
        "labels in the set of an accepted image, on average. A full set holds every label and says nothing.",
    ),
    ("Informative", "share of all images that are accepted with at least one label and not all of them."),
    ("Deferred", "share of all images that go to a clinician instead of getting an answer."),
    ("Accepted", "images that passed the support audit; a method without an audit accepts every image."),
    (
        "Localized",
        "sets whose threshold comes from calibration images like the one at hand, without the guard.",
    ),
    (
        "Protected",
        "a class with a threshold of its own, the guard, because validation images showed that it needs one.",
    ),
    ("Interval", "95 %: Wilson for shares, bootstrap for the set size and for the worst class of a table."),
    ("Clearly below", "the whole Wilson interval lies below the target."),
)


def render_report(cohorts: Sequence[ReportCohort], *, title: str, notes: Sequence[str] = ()) -> str:
    """The page as text: self-contained, without scripts, the same for the same input.

    Parameters
    ----------
    cohorts : sequence of ReportCohort
        At least one; each with its own model.
    title : str
    notes : sequence of str
        Sentences for the end of the page, such as the origin and licence of the data.
    """
    if not cohorts:
        raise SettingsError("cohorts: none given; a report needs at least one cohort")
    figures = [cohort_figures(cohort) for cohort in cohorts]
    keys = [f"cohort-{i + 1}" for i in range(len(figures))]
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "generator", "content": f"calcode {__version__}"}),
        element("title", None, title),
        element("style", None, Html(STYLE)),
    )
    body = element(
        "body",
        None,
        _header(title),
        _navigation(keys, figures),
        element(
            "main",
            None,
            overview_section(figures),
            *[cohort_section(key, entry) for key, entry in zip(keys, figures, strict=True)],
            _words(),
            _notes(notes),
        ),
        _footer(),
    )
    return "<!doctype html>\n" + element("html", {"lang": "en"}, head, body) + "\n"


def write_report(
    path: str | os.PathLike[str], *, cohorts: Sequence[ReportCohort], title: str, notes: Sequence[str] = ()
) -> None:
    """Write the page to a file, which appears whole or not at all.

    Parameters
    ----------
    path : path-like
    cohorts, title, notes
        As in `render_report`.
    """
    page = render_report(cohorts, title=title, notes=notes)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _header(title: str) -> Html:
    return element("header", None, element("h1", None, title), element("p", {"class": "device"}, DEVICE_NOTE))


def _navigation(keys: Sequence[str], figures: Sequence[CohortFigures]) -> Html:
    entries = [("summary", "In short")]
    entries += [(key, entry.cohort.name) for key, entry in zip(keys, figures, strict=True)]
    entries += [("words", "What the words mean")]
    links = [element("li", None, element("a", {"href": f"#{key}"}, name)) for key, name in entries]
    return element("nav", {"aria-label": "Sections"}, element("ul", None, *links))


def _words() -> Html:
    pairs = [
        part for word, meaning in _WORDS for part in (element("dt", None, word), element("dd", None, meaning))
    ]
    return section("words", "What the words mean", element("dl", None, *pairs))


def _notes(notes: Sequence[str]) -> Html:
    return section("notes", "Notes", bullets(notes)) if notes else Html("")


def _footer() -> Html:
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    made = f"calcode {__version__}, Python {platform.python_version()}, {libraries}."
    return element("footer", None, joined([element("p", None, f"{DEVICE_NOTE} Made with {made}")]))
