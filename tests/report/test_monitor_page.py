"""The page of a watched model: alarms first, evidence with its line, coverage with everything beside it."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
import pytest

from calcode.metrics.wording import number, percent
from calcode.monitor import Case, Rates, Watch, labels_needed
from calcode.report.charts import PlaneChart, RowChart, Scale
from calcode.report.monitor_page import monitor_sections
from calcode.report.page import render_page
from calcode.report.parts import Figure, Section, Table


def watched(*, n: int = 80, shift: float = 0.0, miss: float = 0.1, **changes: Any) -> Watch:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "classes": ("bcc", "<mel>", "nv"),
        "model_digest": "m",
        "gate": rng.random(100),
        "references": {},
        "lines": {"bcc": 0.1, "<mel>": 0.1, "nv": 0.24},
    }
    watch = Watch(**(values | changes))
    for i in range(n):
        label = i % 2
        labels = (2,) if rng.random() < miss else (label, 2)
        case = Case(labels, True, False, (0.2, 0.5, 0.3))
        watch.observe(f"i{i}", group=f"g{i}", case=case, distance=float(rng.random()) + shift, when=f"day {i}")
        watch.review(f"i{i}", label=label if i % 10 else None)
    return watch


def section(watch: Watch, key: str) -> Section:
    return next(part for part in monitor_sections(watch, model_name="model") if part.key == key)


def table(watch: Watch, key: str) -> Table:
    (found,) = (part for part in section(watch, key).parts if isinstance(part, Table))
    return found


def text_of(watch: Watch) -> str:
    page = render_page(monitor_sections(watch, model_name="model"), title="Monitors")
    assert "<mel>" not in page
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_a_calm_page_says_so_and_an_alarm_comes_with_evidence_and_advice() -> None:
    calm, changed = watched(), watched(shift=1.0, miss=0.9)
    assert "no alarm" in text_of(calm)
    page = text_of(changed)
    assert {alarm.monitor for alarm in changed.alarms} == {"M1", "M3"}
    for alarm in changed.alarms:
        assert alarm.finding in page
        assert alarm.advice in page


def test_evidence_that_reached_its_line_is_drawn_reaching_it_however_long_the_stream() -> None:
    watch = watched(n=3000, miss=0.0)
    watch.support_history[1234] = np.log(301.0)  # one value among thousands
    (figure,) = (part for part in section(watch, "images").parts if isinstance(part, Figure))
    (chart,) = figure.charts
    assert isinstance(chart, PlaneChart)
    (marks,) = chart.marks
    assert len(marks.up) <= 402
    assert max(marks.up) >= chart.references[0].value == pytest.approx(np.log10(300))


def test_support_that_is_off_is_said() -> None:
    assert "M1 is off" in text_of(watched(gate=None))


def test_coverage_never_comes_without_size_full_sets_labels_and_both_readings_of_missing_labels() -> None:
    watch = watched()
    shown = table(watch, "coverage")
    headings = [column.heading for column in shown.columns]
    row = dict(zip(headings, shown.cells[1], strict=True))
    entry = watch.classes["<mel>"]
    assert row["labels"].text == str(entry.counts.hits + entry.counts.misses)
    assert row["without label"].text == "8"
    assert row["coverage, missing as hits"].text != row["coverage, missing as misses"].text
    low, high = entry.as_hits.interval[1:]
    assert row["coverage, missing as hits"].below == f"{100 * low:.1f} to {100 * high:.1f}"
    assert row["mean set size"].text == f"{entry.size_sum / (entry.counts.hits + entry.counts.misses):.2f}"
    assert row["full sets"].text == percent(0.0)
    assert "were deferred" in text_of(watch)


def test_a_diagnosis_without_a_label_has_no_coverage_whatever_waits() -> None:
    """Its only case is one that nobody read."""
    watch = watched(n=1)
    assert watch.classes["bcc"].counts.missing == 1
    first = table(watch, "coverage").cells[0]
    assert [cell.text for cell in first[1:6]] == ["0", "1", "no label yet", "no label yet", ""]
    assert not any(isinstance(part, Figure) for part in section(watch, "coverage").parts)


def test_every_share_of_the_page_is_in_percent() -> None:
    watch = watched()
    rows = [row for key in ("coverage", "labels") for row in table(watch, key).cells]
    texts = [text for row in rows for cell in row for text in (cell.text, cell.below)]
    # A share with two or more digits behind its point is not in percent; a set size is 1 or more.
    assert {text for text in texts if re.match(r"\[?0\.\d\d", text)} == set()
    counts = watch.classes["<mel>"].counts
    low, high = counts.interval(missing_as=True)
    found = [cell.text for cell in rows[1]]
    assert found[3:6] == [
        percent(counts.coverage(missing_as=True)),
        percent(counts.coverage(missing_as=False)),
        f"{100 * low:.1f} to {100 * high:.1f}",
    ]
    assert found[8] == percent(0.9)


def test_the_labels_that_an_alarm_needs_are_those_of_the_library() -> None:
    watch = watched()
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table(watch, "labels").cells}
    assert rows["bcc, <mel>"][:2] == [percent(0.9), "900"]
    alpha = watch.classes["bcc"].coverage.alpha
    assert rows["bcc, <mel>"][-1] == str(labels_needed(line=0.1, alpha=alpha, miss_rate=0.3))
    assert rows["bcc, <mel>"][2] == "tolerated"  # a true coverage of 90 % is on the line
    assert rows["nv"][-2] == "tolerated"


def test_how_it_answers_is_shown_with_intervals_and_against_the_shadow() -> None:
    watch = watched(n=300)
    assert "never in the shadow" in text_of(watch)
    alike, other = Rates(3), Rates(3)
    for i in range(300):
        alike.update(deferred=False, size=2)
        other.update(deferred=i % 2 == 0, size=3)
    watch.shadow_rates = alike
    assert "Nothing here differs from its time in the shadow" in text_of(watch)
    watch.shadow_rates = other
    page = text_of(watch)
    assert "cases left to a clinician, answers that rule nothing out and diagnoses in an answer" in page
    (figure,) = (part for part in section(watch, "answers").parts if isinstance(part, Figure))
    assert figure.numbers is not None
    facts = watch.rates.against(other)
    for (name, fact), row in zip(facts.items(), figure.numbers.cells, strict=True):
        write, times, digits = (number, 1, 2) if name == "set_size" else (percent, 100, 1)
        assert row[1].text == write(fact["mean"])
        low, high = (f"{times * fact[side]:.{digits}f}" for side in ("low", "high"))
        assert row[1].below.startswith(f"{low} to {high}, ")
        assert row[2].text == write(fact["expected"]["mean"])
        assert row[3].text == "yes"
    shares, sizes = figure.charts
    assert isinstance(shares, RowChart)
    assert isinstance(sizes, RowChart)
    assert [sorted(row.values) for chart in (shares, sizes) for row in chart.rows] == [[0, 1]] * 3
    assert sizes.scale.high == 3.0


def test_a_watch_without_any_image_has_a_page() -> None:
    assert "(0 cases), none was answered" in text_of(watched(n=0))


def test_figures_over_several_models_say_so() -> None:
    assert "Since monitoring of this sample began (80 cases), 0.0\u00a0% were deferred" in text_of(watched())
    sections = monitor_sections(watched(), model_name="model", n_models=2)
    page = render_page(sections, title="Monitors")
    assert "Since monitoring of this sample began (80 cases, 2 models), 0.0\u00a0%" in page


def test_a_diagnosis_that_cannot_be_missed_is_marked() -> None:
    assert "in every answer" not in text_of(watched())
    sections = monitor_sections(watched(), model_name="model", names={"bcc": "carcinoma"}, in_every_answer=["bcc"])
    page = render_page(sections, title="Monitors")
    assert re.search(r'carcinoma\s*<span class="sub">in every answer</span>', page)
    assert "labels, in every answer" in page


def test_one_is_no_plural() -> None:
    page = " ".join(text_of(watched(n=1)).split())
    for words in ("over 1 patient with one image", "After 1 patient the evidence", "(1 case), 0.0"):
        assert words in page


def test_ticks_of_counts_are_whole_numbers() -> None:
    for n in (1, 3, 7, 80):
        (figure,) = (part for part in section(watched(n=n), "images").parts if isinstance(part, Figure))
        (chart,) = figure.charts
        assert isinstance(chart, PlaneChart)
        ticks = Scale(low=chart.across.low, high=chart.across.high).ticks()
        assert len(ticks) > 1
        assert all(tick == round(tick) for tick in ticks)
