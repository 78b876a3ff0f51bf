"""The paper's tables as data: values typed here by hand from the print, and the arithmetic they must satisfy."""

from __future__ import annotations

import statistics
import tomllib

import pytest
from doc_blocks import ROOT

from calcode.baselines.registry import METHODS
from calcode.errors import StudyError
from calcode.method.decisions import COST_REGIMES
from calcode.study.paper import paper_backbone, paper_backbones, paper_setting, reported_tables
from calcode.study.registry import TABLES

SHARES = {"coverage", "worst_class_coverage", "deferral", "full_set_rate", "informative_rate", "frequency", "auroc"}


@pytest.mark.parametrize(
    ("table", "wanted", "expected"),
    [
        (
            "main_comparison",
            {"setting": "ISIC 2019", "backbone": "PubMedCLIP ViT-B/32", "method": "conf-ot"},
            {"coverage": "0.921", "worst_class_coverage": "0.077", "set_size": "4.60", "deferral": ""},
        ),
        (
            "main_comparison",
            {"setting": "PAD-UFES-20", "backbone": "MedSigLIP-448", "method": "cp-rvalue-k"},
            {"coverage": "0.655", "worst_class_coverage": "0.141", "set_size": "3.00"},
        ),
        (
            "main_comparison",
            {"setting": "PAD-UFES-20", "backbone": "average", "method": "calcode"},
            {"coverage": "0.999", "worst_class_coverage": "0.989", "set_size": "4.99", "deferral": "0.321"},
        ),
        (
            "matched_ablations",
            {"method": "calcode-no-localization"},
            {
                "coverage": "0.976",
                "worst_class_coverage": "0.900",
                "set_size": "5.77",
                "coverage_hits": "7",
                "worst_class_hits": "3",
            },
        ),
        (
            "geometry_audit",
            {"backbone": "BiomedCLIP"},
            {"class_shift_ratio": "5.800", "median_p_audit": "0.004", "effective_rank": "38.529"},
        ),
        (
            "paired_bootstrap",
            {"setting": "PAD-UFES-20", "method": "lcp-vlm", "metric": "worst_class_coverage"},
            {"difference": "-0.0003", "low": "-0.0126", "high": "0.0071"},
        ),
        (
            "audit_stability",
            {"setting": "PAD-UFES-20", "backbone": "BiomedCLIP"},
            {"selected": "fused", "auroc": "0.699", "margin": "0.019", "frequency": "0.956"},
        ),
        (
            "gamma_sensitivity",
            {"discovery_margin": "0.08"},
            {"guard_level": "0.90", "worst_class_coverage": "0.966", "set_size": "5.814"},
        ),
        (
            "guard_level",
            {"setting": "ISIC 2019", "guard_level": "0.95"},
            {"worst_class_coverage": "0.970", "set_size": "6.712"},
        ),
        (
            "camelyon_stress_test",
            {"backbone": "OpenAI CLIP ViT-B/32", "method": "lac"},
            {"coverage": "0.892", "set_size": "1.799", "selective_accuracy": "0.426", "worst_class_coverage": "0.810"},
        ),
        ("utility_profile", {"setting": "all", "method": "lcp-vlm"}, {"coverage_hits": "8", "worst_class_hits": "5"}),
        (
            "utility_profile",
            {"setting": "PAD-UFES-20", "method": "calcode"},
            {"full_set_rate": "0.993", "informative_rate": "0.003"},
        ),
        ("cost_risk", {"regime": "deferral-expensive", "method": "calcode"}, {"risk": "2.007", "cost_deferral": "5"}),
        (
            "validation_selected_risk",
            {"regime": "deferral-expensive"},
            {"delta_risk": "-0.558", "delta_deferral": "-0.150"},
        ),
        (
            "cross_modal_switches",
            {"setting": "PAD-UFES-20", "backbone": "MedSigLIP-448"},
            {"selected_audit": "disagreement", "delta_deferral": "0.547", "delta_selective_accuracy": "-0.180"},
        ),
        (
            "camelyon_utility",
            {"backbone": "BiomedCLIP"},
            {"original_informative": "0.209", "utility_deferral": "0.786", "singleton_coverage": "0.920"},
        ),
        (
            "approximate_neighbours",
            {"setting": "PAD-UFES-20", "backbone": "MedSigLIP-448"},
            {"hnsw_milliseconds": "0.0125", "support_error_p95": "5.07e-7"},
        ),
        ("ham10000", {"method": "no-semantic-term"}, {"coverage": "0.960", "set_size": "4.08", "deferral": "0.036"}),
        ("classwise_isic2019", {"method": "lac", "class_name": "akiec"}, {"coverage": "0.211", "n": "374"}),
        ("classwise_ham10000", {"method": "mondrian", "class_name": "mel"}, {"coverage": "0.930", "n": "227"}),
    ],
)
def test_values_are_those_of_the_print(table: str, wanted: dict[str, str], expected: dict[str, str]) -> None:
    row = reported_tables()[table].find(wanted)
    assert row is not None
    assert {name: row[name] for name in expected} == expected


def test_every_table_is_whole() -> None:
    tables = reported_tables()
    assert [len(table.rows) for table in tables.values()] == [
        100, 6, 4, 8, 8, 7, 6, 16, 27, 16, 4, 4, 4, 4, 11, 42, 42,
    ]  # fmt: skip
    places = [table.place for table in tables.values()]
    assert places == [
        "Table 1",
        "Tables 2 and S4",
        "Table S1",
        "Table S2",
        "Table S3",
        *[f"Table S{i}" for i in range(5, 17)],
    ]


def test_names_are_those_that_a_study_uses() -> None:
    ours = {column.name for schema in TABLES.values() for column in schema.columns}
    for table in reported_tables().values():
        for row in table.rows:
            if "method" in row:
                assert row["method"] in METHODS
            if "regime" in row:
                assert row["regime"] in COST_REGIMES
            if row.get("backbone", "average") != "average":
                assert row["backbone"] in paper_backbones()
        known = ours | {"printed_name", "exact_milliseconds", "hnsw_milliseconds", "delta_deferral", "chosen_deferral"}
        assert set(table.columns) <= known, table.name


def test_numbers_are_numbers_and_shares_are_shares() -> None:
    words = {
        "setting",
        "backbone",
        "method",
        "printed_name",
        "metric",
        "selected",
        "regime",
        "selected_audit",
        "class_name",
    }
    for table in reported_tables().values():
        for row in table.rows:
            for name, cell in row.items():
                if name in words:
                    assert cell
                elif cell:
                    value = float(cell)
                    assert 0.0 <= value <= 1.0 or name not in SHARES, (table.name, name, cell)


@pytest.mark.parametrize("column", ["coverage", "worst_class_coverage", "set_size"])
def test_printed_averages_are_averages(column: str) -> None:
    table = reported_tables()["main_comparison"]
    checked = 0
    for row in table.rows:
        if row["backbone"] == "average":
            cells = [
                float(other[column])
                for other in table.rows
                if (other["setting"], other["method"]) == (row["setting"], row["method"])
                and other["backbone"] != "average"
            ]
            # Two roundings: of what is averaged, and of the average.
            step = 10.0 ** -len(row[column].partition(".")[2])
            assert statistics.fmean(cells) == pytest.approx(float(row[column]), abs=1.01 * step)
            checked += 1
    assert checked == 20


def test_costs_are_those_of_the_regimes() -> None:
    for row in reported_tables()["cost_risk"].rows:
        costs = COST_REGIMES[row["regime"]]
        assert [float(row[name]) for name in ("cost_error", "cost_set", "cost_deferral")] == [
            costs.error,
            costs.set_size,
            costs.deferral,
        ]


def test_what_the_paper_does_not_print_is_not_found() -> None:
    table = reported_tables()["main_comparison"]
    assert table.find({"method": "saps"}) is None
    with pytest.raises(StudyError, match="fits 10 rows"):
        table.find({"method": "aps"})


@pytest.mark.parametrize("name", ["ISIC2019", "isic 2019", "HAM -> ISIC 2019", "ham10000→isic2019"])
def test_a_setting_is_known_by_its_target(name: str) -> None:
    assert paper_setting(name) == "ISIC 2019"


@pytest.mark.parametrize("name", ["ROSENDAHL", "padding", "isic2020", ""])
def test_other_settings_are_not_the_papers(name: str) -> None:
    assert paper_setting(name) is None


def test_the_study_of_the_paper_is_known_by_its_names() -> None:
    study = tomllib.loads((ROOT / "studies" / "paper.toml").read_text())
    assert {paper_backbone(entry["name"]) for entry in study["backbones"]} == set(paper_backbones())
    settings = {paper_setting(entry["name"]) for entry in study["settings"]}
    assert settings == {"HAM10000", "ISIC 2019", "PAD-UFES-20", "Camelyon17"}


def test_backbones_are_known_by_their_names() -> None:
    names = ("BiomedCLIP", "openai-clip-vit-b-32", "pubmedclip", "medsiglip-448")
    assert tuple(paper_backbone(name) for name in names) == paper_backbones()
    assert paper_backbone("lite0-frozen") is None
