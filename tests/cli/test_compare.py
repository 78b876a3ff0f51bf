"""`calcode compare`: the library's rows as tables, JSON, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import CLASSES, write_cohort

from calcode.baselines import METHODS, Roles
from calcode.cohorts import open_features
from calcode.study.comparison import chosen_methods, compare_methods
from calcode.study.methods import GROUPS

FITTED = ("reference", "validation", "gate", "calibration")
QUICK = "aps,tacp,calcode"


pytestmark = pytest.mark.usefixtures("here")


def rows_by_hand(names: list[str]) -> list[dict[str, Any]]:
    file = open_features("split.parquet")
    roles = Roles(**{role: file.read(role=role).evidence for role in FITTED})
    rows = compare_methods(roles, file.read(role="test").evidence, methods=chosen_methods(names))
    return [row.cells() for row in rows]


def lines_of_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_holds_the_library_s_rows(run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("compare", "split.parquet", "--methods", QUICK)
    expected = rows_by_hand(QUICK.split(","))
    assert [row["method"] for row in facts["rows"]] == [row["method"] for row in expected]
    for found, row in zip(facts["rows"], expected, strict=True):
        summary = found["summary"]
        assert summary["coverage"]["value"] == row["coverage"]
        assert summary["worst_class_coverage"]["low"] == row["worst_class_coverage_low"]
        assert summary["worst_class"] == row["worst_class"]
        assert found["coverage_hit"] == row["coverage_hit"]
        assert (summary["deferral"] is None) == (not found["defers"])
    assert facts["target"] == 0.95
    assert facts["test"]["exchangeable_by_design"] is True
    assert facts["classes"] == CLASSES


def test_calcode_s_row_is_what_evaluate_says(tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    model = str(tmp_path / "strict.safetensors")
    (row,) = run_json("compare", "split.parquet", "--methods", "calcode")["rows"]
    run_json("fit", "split.parquet", "-o", model, "--guard", "0.05")
    summary = run_json("evaluate", model, "split.parquet", "--role", "test")["summary"]
    del summary["promises"]
    assert row["summary"] == summary


@pytest.mark.parametrize("columns", [80, 130])
def test_all_methods_in_tables_that_fit(columns: int, run: Callable[..., Any]) -> None:
    result = run("compare", "split.parquet", "--methods", "all", columns=columns)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= columns
    heads = [line for line in lines if line.startswith("method  ")]
    assert len(heads) == (2 if columns == 80 else 1)
    # No coverage without its cost, in whichever table it stands.
    for head in heads:
        words = head.split()
        if "coverage" in words:
            assert {"size", "full", "defer", "single"} <= set(words)
    shown = {word for head in heads for word in re.split(r"\s{2,}", head)}
    assert {"coverage", "worst class", "full", "inform.", "defer", "sel.acc", "ECE", "hit", "s"} <= shown
    text = " ".join(result.stdout.split())
    assert sum(line.startswith("> CALCoDe") for line in lines) == len(heads)
    assert "(reconstruction): written from formulas" in text
    assert "exchangeable with the calibration images by design" in text


def cells_of(output: str, title: str) -> list[str]:
    """The cells of a method's first line in the first table."""
    line = next(line for line in output.splitlines() if re.match(rf"(> )?{re.escape(title)}\s{{2,}}", line))
    return re.split(r"\s{2,}", line.strip())


def test_a_method_that_cannot_defer_shows_dashes(run: Callable[..., Any]) -> None:
    output = run("compare", "split.parquet", "--methods", "aps,calcode").stdout
    assert cells_of(output, "Split APS")[5] == "--"
    assert re.fullmatch(r"0\.\d{3}", cells_of(output, "CALCoDe")[5])


def test_csv_reads_back_exactly(run: Callable[..., Any]) -> None:
    result = run("compare", "split.parquet", "--methods", QUICK, "--csv")
    assert result.exit_code == 0, result.output
    for line, row in zip(lines_of_csv(result.stdout), rows_by_hand(QUICK.split(",")), strict=True):
        assert list(line) == list(row)
        for name, value in row.items():
            if name == "seconds":
                continue
            if value is None or value != value:
                assert line[name] == ""
            elif isinstance(value, bool):
                assert line[name] == str(value).lower()
            else:
                assert type(value)(line[name]) == value


def test_latex_has_as_many_cells_in_every_line_and_escapes_names(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("compare", "split.parquet", "--methods", QUICK, "--latex", "--by", "site")
    assert result.exit_code == 0, result.output
    source = [line for line in result.stdout.splitlines() if not line.startswith("%")]
    assert source.count(r"\end{tabular}") == 4  # the cohort, east, west, unknown
    widths = set()
    for line in source:
        if line.endswith(r"\\"):
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            spanned = re.search(r"\\multicolumn\{(\d+)\}", line)
            widths.add(cells + int(spanned[1]) - 1 if spanned else cells)
    assert widths == {11}
    assert r"\begin{tabular}{lllrlrrrrrr}" not in source
    assert "TACP-APS (reconstruction) &" in result.stdout
    assert r"\textbf{CALCoDe} &" in result.stdout
    # Signs that mean something to LaTeX: braces come in pairs, a per cent sign only opens comments.
    assert all(line.count("{") == line.count("}") for line in source)
    assert not any(re.search(r"(?<!\\)[%#$_^]", line) for line in source)


def test_the_test_images_can_be_chosen_apart(tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    # Without patients, who were seen at both sites.
    roles = ["reference", "validation", "gate", "calibration", "test"] * 120
    write_cohort(tmp_path / "sites.parquet", n=600, roles=roles, groups=None)
    facts = run_json(
        "compare",
        str(tmp_path / "sites.parquet"),
        "--methods",
        "aps",
        "--where",
        "site=east",
        "--test-where",
        "site=west",
        "--min-n",
        "5",
    )
    images = open_features(tmp_path / "sites.parquet").read()
    assert facts["test"]["images"] == int((images.column("site") == "west").sum())
    assert facts["test"]["exchangeable_by_design"] is False
    assert facts["note"].endswith("every figure is an observation on these images.")
    east = images[images.column("site") == "east"]
    assert facts["fitted_on"] == {role: len(east.with_role(role)) for role in FITTED}


def test_conditions_hold_for_the_test_role_too(run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("compare", "split.parquet", "--methods", "aps", "--where", "site=east")
    images = open_features("split.parquet").read(role="test")
    assert facts["test"]["images"] == int((images.column("site") == "east").sum())
    assert facts["test"]["exchangeable_by_design"] is True


def test_images_of_other_diagnoses_are_left_out_unless_kept(run_json: Callable[..., dict[str, Any]]) -> None:
    line = ("compare", "split.parquet", "--methods", "calcode", "--classes", "nevus,keratosis")
    test = open_features("split.parquet").read(role="test")
    melanomas = int((test.column("label_name") == "melanoma").sum())
    apart, kept = run_json(*line), run_json(*line, "--keep-outside")
    assert (apart["test"]["images"], apart["test"]["left_out"]) == (len(test) - melanomas, melanomas)
    assert (kept["test"]["images"], kept["test"]["left_out"]) == (len(test), 0)
    first, second = apart["rows"][0]["summary"], kept["rows"][0]["summary"]
    assert first["coverage"] == second["coverage"]
    assert second["out_of_space_deferral"]["n"] == melanomas


def test_subgroups_of_chosen_methods(run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]) -> None:
    line = ("compare", "split.parquet", "--methods", "aps,calcode", "--by", "site")
    facts = run_json(*line)
    groups = facts["by"]["groups"]
    assert list(groups) == ["east", "west", "unknown"]
    assert [[row["method"] for row in rows] for rows in groups.values()] == [["aps", "calcode"]] * 3
    assert sum(rows[0]["summary"]["n"] for rows in groups.values()) == facts["test"]["images"]
    page = run(*line).stdout
    for value, rows in groups.items():
        assert f"site = {value}: {rows[0]['summary']['n']} images" in page
    lines = lines_of_csv(run(*line, "--csv").stdout)
    assert [(entry["by"], entry["group"], entry["method"]) for entry in lines][:3] == [
        ("", "", "aps"),
        ("", "", "calcode"),
        ("site", "east", "aps"),
    ]
    assert len(lines) == 8


def test_one_failing_method_is_a_row_and_all_of_them_an_error(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(type(METHODS["lac"]), "predict", broken)
    beside = run("compare", "split.parquet", "--methods", "lac,aps")
    assert beside.exit_code == 0
    assert "(1) Split LAC: failed: ZeroDivisionError: no such luck" in beside.stdout
    assert re.match(r"0\.9\d\d", cells_of(beside.stdout, "Split APS")[1])
    alone = run("compare", "split.parquet", "--methods", "lac")
    assert alone.exit_code == 1
    assert "no such luck" in alone.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("skin.parquet", "skin.parquet: no column 'role'.* calcode split skin.parquet"),
        (
            "split.parquet --where site=east --test-where site=west",
            "split.parquet: groups: .* in the reference role too .*--where",
        ),
        ("split.parquet --test-where site=west", "split.parquet: ids: .* in the reference role too .*--where"),
        ("split.parquet --test-role external", "split.parquet: column 'role' holds no 'external'"),
        ("split.parquet --by hospital", "split.parquet: no metadata column 'hospital' for --by"),
        ("split.parquet --classes wart,nevus", "split.parquet: no class wart"),
        ("split.parquet --where site=north", "split.parquet: no row has the role .* meets"),
    ],
)
def test_files_that_do_not_serve(line: str, message: str, run: Callable[..., Any]) -> None:
    result = run("compare", *line.split(), "--methods", "aps")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.match(f"Error: {message}", result.stderr)


def test_images_without_labels_cannot_be_judged(tmp_path: Path, run: Callable[..., Any]) -> None:
    roles = ["reference", "validation", "gate", "calibration", "test"] * 60
    names = [name if role != "test" else "" for name, role in zip(CLASSES * 100, roles, strict=True)]
    write_cohort(tmp_path / "new.parquet", n=300, label_names=names, roles=roles, groups=None)
    result = run("compare", str(tmp_path / "new.parquet"), "--methods", "aps")
    assert result.exit_code == 1
    assert "the images have no labels" in result.stderr


@pytest.mark.parametrize(
    "options", ["--methods nonsense", "--miscoverage 0", "--csv --json", "--csv --latex", "--min-n 0"]
)
def test_a_command_that_is_not_understood_is_2(options: str, run: Callable[..., Any]) -> None:
    result = run("compare", "split.parquet", *options.split())
    assert result.exit_code == 2
    assert result.stdout == ""


def test_the_help_names_every_group(run: Callable[..., Any]) -> None:
    page = " ".join(run("compare", "--help").stdout.replace("│", " ").split())
    assert f"Groups: {', '.join(GROUPS)}." in page
