"""The figures of a method as words and cells: coverage never without what it cost."""

from __future__ import annotations

import math

from calcode.report.wording import (
    counted,
    listed,
    number,
    percent,
    percent_estimate,
    percent_interval,
)
from calcode.study.page.cells import count_of, estimate_of, value_of, words_of
from calcode.study.page.output import SettingFacts, StudyOutput
from calcode.study.page.parts import Entry, Heading
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

#: Columns of every table that shows methods.
FIGURE_HEADINGS = (
    Heading("coverage"),
    Heading("worst class"),
    Heading("set size"),
    Heading("full sets"),
    Heading("informative"),
    Heading("deferred"),
)
#: Further columns where a reader asks for everything.
MORE_HEADINGS = (
    Heading("one label"),
    Heading("selective accuracy"),
    Heading("calibration error"),
)
#: What the sentence of a table of averages says.
TARGET_HEADINGS = (Heading("target met"), Heading("met by worst class"))
#: Series of the charts: marks and colours that stay with a method throughout.
_SERIES_COMPLETE, _SERIES_ORDINARY, _SERIES_LOCALIZED = 2, 0, 1
_OTHER_SERIES = (3, 4, 5, 6)
_LOCALIZED = "localized-calibration"


def series_of(output: StudyOutput) -> dict[str, int]:
    """The mark of every method that is shown without being asked; those beyond the marks there are have none."""
    series: dict[str, int] = {COMPLETE: _SERIES_COMPLETE}
    free = list(_OTHER_SERIES)
    for method in output.shown:
        if method == output.ordinary:
            series[method] = _SERIES_ORDINARY
        elif method == _LOCALIZED:
            series[method] = _SERIES_LOCALIZED
        elif method not in series and free:
            series[method] = free.pop(0)
    return {method: series[method] for method in output.shown if method in series}


def figure_entries(row: Row) -> tuple[Entry, ...]:
    """The cells of `FIGURE_HEADINGS`; intervals where the table has them."""
    coverage = estimate_of(row, "coverage")
    worst = estimate_of(row, "worst_class_coverage")
    size = estimate_of(row, "set_size")
    deferral = estimate_of(row, "deferral")
    named = words_of(row, "worst_class") if "worst_class" in row else ""
    return (
        Entry(percent(coverage.value), percent_interval(coverage)),
        Entry(percent(worst.value), ", ".join(word for word in (named, percent_interval(worst)) if word)),
        Entry(
            number(size.value), "" if math.isnan(size.low) else f"{number(size.low)} to {number(size.high)}"
        ),
        Entry(percent(value_of(row, "full_set_rate"))),
        Entry(percent(value_of(row, "informative_rate"))),
        _deferral(row, percent(deferral.value), percent_interval(deferral)),
    )


def _deferral(row: Row, share: str, interval: str) -> Entry:
    """A method that cannot defer has no rate of deferral to be compared."""
    cannot = row.get("defers") is False and value_of(row, "deferral") == 0.0
    return Entry("cannot") if cannot else Entry(share, interval)


def more_entries(row: Row) -> tuple[Entry, ...]:
    """The cells of `MORE_HEADINGS`."""
    return (
        Entry(percent(value_of(row, "singleton_rate"))),
        Entry(percent(value_of(row, "selective_accuracy"))),
        Entry(number(value_of(row, "calibration_error"), digits=3)),
    )


def target_entries(row: Row) -> tuple[Entry, ...]:
    """The cells of `TARGET_HEADINGS`: of how many combinations."""
    n = count_of(row, "n_combinations")
    return (
        Entry(f"{count_of(row, 'coverage_hits')} of {n}"),
        Entry(f"{count_of(row, 'worst_class_hits')} of {n}"),
    )


def cost_words(row: Row, *, n_classes: int | None = None) -> str:
    """What coverage cost: set size, full sets and deferral."""
    full, deferred = value_of(row, "full_set_rate"), value_of(row, "deferral")
    labels = number(value_of(row, "set_size"))
    size = f"{labels} of {n_classes} labels per set" if n_classes else f"{labels} labels per set"
    return (
        f"{size}, {f'{percent(full)} full sets' if full else 'no full set'}, "
        f"{f'{percent(deferred)} deferred' if deferred else 'none deferred'}"
    )


def coverage_words(row: Row, *, n_classes: int) -> str:
    """Coverage of one method on one combination, with its cost."""
    coverage = estimate_of(row, "coverage", n="n_accepted")
    if not coverage.n:
        return "nothing that could be judged, because no image of the label space is accepted"
    images = counted(coverage.n, "accepted image")
    return f"{percent_estimate(coverage)} of {images} ({cost_words(row, n_classes=n_classes)})"


def place_words(output: StudyOutput, setting: SettingFacts, backbone: str) -> str:
    """A combination in words; the backbone only where there are several."""
    return f"{setting.name} with {backbone}" if len(output.backbones) > 1 else setting.name


def observed_words(output: StudyOutput) -> str:
    """Which settings are observations only; nothing where none is."""
    names = [setting.name for setting in output.settings if setting.shifted]
    if not names:
        return ""
    are = "differ" if len(names) > 1 else "differs"
    return (
        f"{listed(names)} {are} from the calibration images by more than chance: every figure there is "
        "observed, and nothing is promised."
    )
