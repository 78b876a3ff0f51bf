"""The page as a whole: complete, self-contained, true to the numbers, safe against the names it is given."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.builders import THREE, cohort_of, decisions_of, model_with, real_cohort, repeated
from report.reading import by_id, table_of, tables, tree, words

from calcode import Calcode
from calcode.errors import CalcodeError, EvidenceError, MismatchError, SettingsError
from calcode.metrics.intervals import wilson_interval
from calcode.report import ReportCohort, cohort_figures, render_page, report_sections, write_page


def render_report(cohorts: list[ReportCohort], *, title: str, notes: tuple[str, ...] = ()) -> str:
    return render_page(report_sections([cohort_figures(cohort) for cohort in cohorts], notes=notes), title=title)


HOSTILE = ("<script>alert(1)</script>", "b\"&'<img src=x onerror=alert(2)>", "c</title></style>]]>")


@pytest.fixture(scope="module")
def cohorts() -> list[ReportCohort]:
    return [
        real_cohort(model_with(always_protect=("b",))),
        real_cohort(model_with(protect="none"), seed=10, outside=30, shifted=True, name="SHIFTED", ordinary=None),
    ]


@pytest.fixture(scope="module")
def page(cohorts: list[ReportCohort]) -> str:
    return render_report(cohorts, title="A report", notes=("Where the data come from.",))


def share(text: str) -> float:
    found = re.match(r"[<>]?([\d.]+) %", text)
    assert found is not None, text
    return float(found[1]) / 100


def test_the_page_is_well_formed_and_its_ids_are_unique(page: str) -> None:
    root = tree(page)
    ids = Counter(entry.get("id") for entry in root.iter() if entry.get("id"))
    assert set(ids.values()) == {1}
    for entry in root.iter():
        for key in (entry.get("aria-labelledby") or "").split():
            assert key in ids
    for link in root.iter("a"):
        assert (link.get("href") or "").removeprefix("#") in ids


def test_nothing_is_loaded_and_nothing_runs(page: str) -> None:
    root = tree(page)
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & {e.tag for e in root.iter()}
    for entry in root.iter():
        for name, value in entry.attrib.items():
            assert not name.startswith("on")
            assert "//" not in value, (entry.tag, name, value)
            if name in ("href", "src", "action", "xlink:href"):
                assert value.startswith("#")
    assert not re.search(r"url\(|@import|https?:", page)


def test_every_chart_has_a_text_alternative(page: str) -> None:
    root = tree(page)
    charts = [entry for entry in root.iter("div") if entry.get("role") == "img"]
    assert len(charts) >= 12
    assert all(len(chart.get("aria-label") or "") > 20 for chart in charts)
    # Every figure with a chart has its numbers in a table, too.
    for figure in root.iter("figure"):
        if any(entry.get("role") == "img" for entry in figure.iter("div")):
            assert list(figure.iter("table")), words(figure)[:60]
    # Pictures without a name stand beside the word they illustrate and are hidden from those who listen.
    hidden = {svg for span in root.iter("span") if span.get("aria-hidden") for svg in span.iter("svg")}
    inside = {svg for chart in charts for svg in chart.iter("svg")}
    assert set(root.iter("svg")) == hidden | inside


def method_row(outcome: dict[str, np.ndarray[Any, Any]], labels: np.ndarray[Any, Any]) -> dict[str, float]:
    """The metrics of METHOD.md 11, computed with nothing of the package."""
    sets, answered = outcome["sets"], outcome["answered"]
    judged = answered & (labels >= 0)
    covered = np.array([label >= 0 and sets[i, label] for i, label in enumerate(labels)])
    size = sets.sum(axis=1)
    classes = [covered[judged & (labels == y)] for y in range(sets.shape[1])]
    return {
        "coverage": covered[judged].mean(),
        "worst class": min(hits.mean() for hits in classes if len(hits)),
        "set size": size[judged].mean(),
        "full sets": (size == sets.shape[1])[judged].mean(),
        "single answers": (judged & (size == 1) & covered).sum() / (judged & (size == 1)).sum(),
        "deferred": (~answered).mean(),
    }


def test_the_method_tables_hold_the_metrics(page: str, cohorts: list[ReportCohort]) -> None:
    root = tree(page)
    for i, cohort in enumerate(cohorts):
        shown = {row["method"]: row for row in table_of(by_id(root, f"cohort-{i + 1}"), "worst class")}
        decisions = cohort.decisions
        answered = decisions.answered
        expected = {
            "CALCoDe": {"sets": decisions.sets, "answered": answered},
            "Localized": {
                "sets": decisions.localized_sets,
                "answered": decisions.accepted & decisions.localized_sets.any(axis=1),
            },
        }
        if cohort.ordinary is not None:
            sets = decisions.scores <= 0.8
            expected["Split APS"] = {"sets": sets, "answered": np.ones_like(answered)}
            expected["Split APS, same images"] = {"sets": sets, "answered": answered}
        assert set(shown) == set(expected)
        for name, outcome in expected.items():
            row = shown[name]
            for metric, value in method_row(outcome, cohort.labels).items():
                if metric == "set size":
                    assert float(row[metric].split()[0]) == pytest.approx(value, abs=0.005 + 1e-9)
                elif metric == "single answers":
                    right, n = re.findall(r"\d+", row[metric])[:2]
                    assert int(right) / int(n) == pytest.approx(value), (name, metric)
                else:
                    text = row[metric].partition(" ")[2] if metric == "worst class" else row[metric]
                    assert share(text) == pytest.approx(value, abs=0.0005 + 1e-9), (name, metric)


def test_class_coverage_comes_with_n_wilson_interval_and_cost(page: str, cohorts: list[ReportCohort]) -> None:
    cohort = cohorts[0]
    rows = table_of(by_id(tree(page), "cohort-1"), "class", "method", "informative")
    decisions, labels = cohort.decisions, cohort.labels
    for y, name in enumerate(THREE):
        (row,) = [r for r in rows if r["class"].split()[0] == name and r["method"] == "CALCoDe"]
        members = decisions.answered & (labels == y)
        hits, n = int(decisions.sets[members, y].sum()), int(members.sum())
        low, high = wilson_interval(hits, n)
        assert row["answered"] == f"{n} of {(labels == y).sum()}"
        assert row["coverage"].endswith(f"{100 * low:.1f} to {100 * high:.1f}")
        assert share(row["coverage"]) == pytest.approx(hits / n, abs=0.0005)
        assert float(row["set size"]) == pytest.approx(decisions.sets[members].sum(axis=1).mean(), abs=0.005)
        assert ("protected" in row["class"]) == (name in cohort.model.tail_classes_)


def test_coverage_never_stands_alone_in_a_table(page: str) -> None:
    for name, rows in tables(tree(page)).items():
        if rows and any(heading in rows[0] for heading in ("coverage", "worst class")):
            assert {"set size", "full sets", "deferred"} <= set(rows[0]), name
            # Single answers belong to a cohort, not to a class.
            assert ("single answers" in rows[0]) == ("class" not in rows[0]), name


def test_set_sizes_and_reasons_add_up(page: str, cohorts: list[ReportCohort]) -> None:
    root = tree(page)
    for i, cohort in enumerate(cohorts):
        section = by_id(root, f"cohort-{i + 1}")
        for row in table_of(section, "empty set", "1 label", "all 3"):
            shares = [share(value) for name, value in row.items() if name not in ("method", "single answers")]
            assert sum(shares) == pytest.approx(1, abs=0.003)
        rows = table_of(section, "images", "low support (audit)")
        assert sum(int(row["images"]) for row in rows) == len(cohort.decisions)
        assert sum(int(row["low support (audit)"]) for row in rows) == (~cohort.decisions.accepted).sum()
        assert (rows[-1]["class"] == "outside the label space") == (cohort.labels < 0).any()
        bins = table_of(section, "p-value", "images", "share")
        assert sum(int(row["images"]) for row in bins) == len(cohort.decisions)


def test_subgroups_are_reported_where_they_are_known(page: str, cohorts: list[ReportCohort]) -> None:
    section = by_id(tree(page), "cohort-1")
    text = words(section)
    assert "All images have the same site: one." in text
    by_sex = table_of(section, "sex")
    cohort = cohorts[0]
    for row in by_sex:
        members = cohort.metadata["sex"] == row["sex"].split()[0]
        decisions = cohort.decisions[members & cohort.decisions.answered]
        labels = cohort.labels[members & cohort.decisions.answered]
        assert share(row["coverage"]) == pytest.approx(
            decisions.sets[np.arange(len(labels)), labels].mean(), abs=0.0005
        )
        assert f"{len(labels)} of {members.sum()} answered" in row["sex"]
    skin = [row["skin type (Fitzpatrick)"].split()[0] for row in table_of(section, "skin type (Fitzpatrick)")]
    assert skin == ["2", "unknown"]


def test_a_column_without_a_value_is_said_to_be_unknown() -> None:
    cohort = real_cohort(model_with(), metadata={"fitzpatrick": np.full(200, np.nan)})
    text = words(tree(render_report([cohort], title="T")))
    assert "No image has a recorded skin type (Fitzpatrick)." in text
    assert "By sex" not in text


def test_cases_are_what_they_are_said_to_be() -> None:
    model = model_with(always_protect=("b",))
    cohort = cohort_of(
        model,
        labels=[1, 1, 0, 2, 2, 1],
        localized=[[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]],
        sets=[[1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]],
        p_audit=[0.5, 1, 1, 0.25, 1, 0.0],
        ids=["kept", "fine", "wider", "missed", "empty", "deferred"],
    )
    found = tables(tree(render_report([cohort], title="T")))
    kept, missed = [rows for rows in found.values() if rows and "true class" in rows[0]]
    assert [row["image"] for row in kept] == ["kept"]
    assert [row["image"] for row in missed] == ["missed"]  # an empty set is deferred and no miss
    assert kept[0]["localized set"] == "a"
    assert kept[0]["CALCoDe's set"] == "a, b"
    assert kept[0]["p-value"] == "0.500"


def test_the_model_is_described(page: str, cohorts: list[ReportCohort]) -> None:
    model = cohorts[0].model
    part = by_id(tree(page), "cohort-1")
    (guard,) = table_of(part, "protected class")
    assert guard["why"] == str(model.tail_reasons_["b"])
    assert guard["class threshold"] == f"{model.tail_thresholds_['b']:.4f}"
    assert guard["calibration images"] == str(model.n_accepted_per_class_["b"])
    trace = table_of(part, "neighbourhood", "h")
    assert [row["h"] for row in trace] == [f"{trial.bandwidth:.4g}" for trial in model.bandwidth_trace_]
    assert model.digest_ in words(part)
    settings = {row["setting"]: row["value"] for row in table_of(part, "setting")}
    assert settings["always_protect"] == "b"
    assert settings["bandwidth"] == "auto"
    assert set(settings) == set(model.settings_.get_params())


def test_promises_stand_apart_from_observations(page: str, cohorts: list[ReportCohort]) -> None:
    root = tree(page)
    at_home, away = words(by_id(root, "cohort-1")), words(by_id(root, "cohort-2"))
    for i, cohort in enumerate(cohorts):
        for sentence in cohort.decisions.promises:
            assert sentence in words(by_id(root, f"cohort-{i + 1}"))
    assert "shifted" not in at_home.replace("on a shifted cohort", "")
    assert "shifted: every figure is observed only" in away
    assert "nothing is promised for its coverage" in away


def test_the_page_says_what_it_is_and_who_made_it(page: str) -> None:
    text = words(tree(page))
    assert text.count("Research software, not a medical device.") == 2
    assert f"numpy {np.__version__}" in text
    assert "Where the data come from." in text


def test_a_saved_model_gives_the_same_page(tmp_path: Path, cohorts: list[ReportCohort], page: str) -> None:
    loaded = []
    for i, cohort in enumerate(cohorts):
        cohort.model.save(tmp_path / f"{i}.safetensors")
        fields = {name: getattr(cohort, name) for name in ReportCohort.__dataclass_fields__}
        loaded.append(ReportCohort(**(fields | {"model": Calcode.load(tmp_path / f"{i}.safetensors")})))
    assert render_report(loaded, title="A report", notes=("Where the data come from.",)) == page


def test_names_are_text_wherever_they_stand() -> None:
    model = model_with(HOSTILE, always_protect=(HOSTILE[1],))
    cohort = real_cohort(
        model,
        name=HOSTILE[0],
        title=HOSTILE[1],
        description=HOSTILE[2],
        class_titles={HOSTILE[0]: HOSTILE[1]},
        metadata={"site": np.array(list(HOSTILE[:2]) * 100)},
    )
    hostile_ids = [f"<b>{i}</b>" for i in range(4)]
    other = cohort_of(
        model, labels=[1] * 4, localized=repeated([1, 0, 0], 4), sets=repeated([1, 1, 0], 4), ids=hostile_ids
    )
    page = render_report([cohort, other], title=HOSTILE[0], notes=(HOSTILE[2],))
    root = tree(page)
    assert not {"script", "img", "b"} & {entry.tag for entry in root.iter()}
    assert root.findtext("head/title") == HOSTILE[0]
    assert root.findtext("body/header/h1") == HOSTILE[0]
    assert hostile_ids[0] in words(by_id(root, "cohort-2"))
    assert not any(name.startswith("on") for entry in root.iter() for name in entry.attrib)


def odd_cohorts() -> dict[str, ReportCohort]:
    """Cohorts at the edge of what can be reported."""
    two = model_with(("yes", "no"), binary_utility=True, protect="none")
    none = model_with(protect="none")
    return {
        "everything deferred": cohort_of(none, labels=[0, 1], sets=repeated([1, 1, 0], 2), p_audit=[0.0, 0.0]),
        "two classes": cohort_of(two, labels=[0, 1, 1], sets=[[1, 0], [1, 1], [0, 0]], ordinary=repeated([1, 0], 3)),
        "nothing in space": cohort_of(
            none, labels=[-1, -1], sets=repeated([1, 0, 0], 2), ordinary=repeated([1, 0, 0], 2)
        ),
        "a class never seen": cohort_of(none, labels=[0, 0], sets=repeated([1, 0, 0], 2), shifted=True),
        "one image, no ids": cohort_of(none, labels=[2], sets=[[1, 0, 0]], metadata={"sex": ["f"]}),
        "no audit, no localization": real_cohort(model_with(audit=None, bandwidth=float("inf"), protect="all")),
        "every level rule's own eta": real_cohort(model_with(level="exact")),
        "empty sets": cohort_of(none, labels=[0, 1], sets=repeated([0, 0, 0], 2), ordinary=repeated([0, 0, 0], 2)),
    }


@pytest.mark.parametrize("case", sorted(odd_cohorts()))
def test_the_page_can_be_made_at_the_edges(case: str) -> None:
    text = words(tree(render_report([odd_cohorts()[case]], title=case)))
    assert "nan" not in re.findall(r"\w+", text)
    assert "None" not in re.findall(r"\w+", text)
    # A plural after one, or a choice from one.
    assert not re.search(r"\b1 (images|classes|labels|candidates|diseases|answers)\b|none of 1\b", text)


def test_the_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = real_cohort(model_with())
    path = tmp_path / "report.html"
    sections = report_sections([cohort_figures(cohort)])
    write_page(path, sections, title="First")
    first = path.read_text(encoding="utf-8")
    assert first == render_report([cohort], title="First")

    def failing(self: Path, content: str, encoding: str) -> int:
        with self.open("w") as file:
            file.write(content[:100])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(OSError, match="disk full"):
        write_page(path, sections, title="Second")
    assert path.read_text(encoding="utf-8") == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_same_input_gives_the_same_page(page: str, cohorts: list[ReportCohort]) -> None:
    assert render_report(cohorts, title="A report", notes=("Where the data come from.",)) == page


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    model = model_with()
    good: dict[str, Any] = {"labels": [0, 1], "sets": repeated([1, 0, 0], 2)}
    cases: list[tuple[type[CalcodeError], str, dict[str, Any]]] = [
        (EvidenceError, "labels", good | {"labels": [0]}),
        (EvidenceError, "labels", good | {"labels": [0, 7]}),
        (EvidenceError, "ordinary", good | {"ordinary": repeated([1, 0, 0], 3)}),
        (EvidenceError, r"metadata\['sex'\]", good | {"metadata": {"sex": ["f"]}}),
        (EvidenceError, "decisions", good | {"labels": [], "sets": np.zeros((0, 3))}),
    ]
    for error, beginning, arguments in cases:
        with pytest.raises(error, match=f"^{beginning}"):
            cohort_of(model, **arguments)
    fields = {name: getattr(cohort_of(model, **good), name) for name in ReportCohort.__dataclass_fields__}
    with pytest.raises(MismatchError, match="^decisions: .*another model"):
        ReportCohort(**(fields | {"decisions": decisions_of(model_with(bandwidth=0.5), sets=good["sets"])}))
    taken = ("CALCoDe", np.asarray(good["sets"], dtype=bool))
    with pytest.raises(SettingsError, match="^ordinary"):
        ReportCohort(**(fields | {"ordinary": taken}))
    with pytest.raises(SettingsError, match="^cohorts"):
        render_report([], title="T")
    with pytest.raises(CalcodeError, match="does not exist"):
        write_page(tmp_path / "no" / "report.html", [], title="T")
