"""The pages tell the truth: their code runs, prints what they show, and they build without a network."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import safetensors
from doc_blocks import ROOT, fenced_blocks, python_steps

from calcode.cohorts.parquet import RESERVED_COLUMNS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES_WITH_CODE = [page for page in PAGES if python_steps(page.read_text())]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(page: Path) -> None:
    """Run the Python blocks of a page in order, and compare what they print with what the page shows."""
    namespace: dict[str, object] = {"__name__": page.stem}
    for step in python_steps(page.read_text()):
        # Empty lines in front make a traceback point into the page.
        code = compile("\n" * (step.line - 1) + step.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        if step.printed is not None:
            assert printed.getvalue().strip() == step.printed.strip(), f"{_name(page)}, line {step.line}"


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=_name)
def test_python_blocks_run_in_order_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


def test_the_page_on_files_names_everything_that_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "files.md"
    run_page(page)
    named = set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text()))

    model = json.loads(safetensors.safe_open("skin.model.safetensors", "numpy").metadata()["calcode"])
    prompts = safetensors.safe_open("skin.prompts.safetensors", "numpy")
    facts = json.loads(prompts.metadata()["calcode-prompts"])
    features = pq.read_schema("skin.parquet")
    decisions = pq.read_schema("decisions.parquet")
    columns = {re.sub("^threshold_.*", "threshold_<class>", name) for name in decisions.names}
    assert model.keys() - named == set()
    assert facts.keys() - named == set()
    assert set(prompts.keys()) - named == set()
    assert {*features.names, *RESERVED_COLUMNS} - named == {"site"}
    assert {key.decode() for key in features.metadata} - named == set()
    assert columns - named == set()


def test_the_readme_and_the_first_page_for_users_have_code_that_runs() -> None:
    assert {"README.md", "docs/own-model.md"} <= {_name(page) for page in PAGES_WITH_CODE}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_of_the_repository_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    shown = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    public = {
        f"{room}.{name}"
        for room in ("calcode", "calcode.metrics", "calcode.site", "calcode.monitor")
        for name in importlib.import_module(room).__all__
    }
    assert shown == {*public, "calcode.sklearn.CalcodeClassifier"}


def test_documents_that_pages_cite_exist() -> None:
    folders = (ROOT, ROOT / "docs", ROOT / "benchmarks")
    cited = {(_name(page), name) for page in PAGES for name in re.findall(r"\b[A-Z]{4,}\.md\b", page.read_text())}
    missing = {entry for entry in cited if not any((folder / entry[1]).exists() for folder in folders)}
    # These pages say what docstrings mean by the names.
    assert missing == {("docs/site-method.md", "SITE.md"), ("docs/house.md", "SERVICE.md")}


def test_sections_that_the_code_cites_are_told_in_the_docs() -> None:
    method, site, house = ((ROOT / "docs" / name).read_text() for name in ("METHOD.md", "site-method.md", "house.md"))
    headings = "".join(re.findall(r"^## .*", site, re.MULTILINE))
    table = house.partition("| SERVICE.md |")[2].partition("\n\n")[0]
    told = {
        "METHOD.md": set(re.findall(r"^## (\d+)\.", method, re.MULTILINE)),
        # What other pages tell is named above the first heading.
        "SITE.md": set(re.findall(r"\bS\d+\b", headings + site.partition("\n## ")[0])),
        "SERVICE.md": set(re.findall(r"\d+", "".join(re.findall(r"^\| [\d, ]+ \|", table, re.MULTILINE)))),
    }
    sources = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    cited = {
        (document, section)
        for path in sources
        for document, sections in re.findall(r"\b([A-Z]+\.md) (S?\d+(?:(?:,| and| to) S?\d+)*)", path.read_text())
        for section in re.findall(r"S?\d+", sections)
    }
    assert len(cited) > 30
    assert {(document, section) for document, section in cited if section not in told[document]} == set()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_modules_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    dotted = set(re.findall(r"`(calcode\.[\w.]+)(?:\([^`]*)?`", text))
    assert {name for name in dotted if _resolved(name) is None} == set()
    if page.name == "house.md":
        files = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
        assert len(files) > 30
        roots = (ROOT, ROOT / "src" / "calcode")
        assert {name for name in files if not any((root / name).exists() for root in roots)} == set()


def _resolved(name: str) -> object:
    """The module or the object behind a dotted name, or None."""
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    owner = _resolved(module) if module else None
    return getattr(owner, attribute, None)


@pytest.mark.timeout(600)
def test_from_nothing_to_a_reviewed_deferral_by_the_page_alone(tmp_path: Path) -> None:
    """The shell blocks of "Your own service in ten minutes", as they stand: only the port and the home are others."""
    for module in ("fastapi", "sqlalchemy", "calcode_demo_data"):
        pytest.importorskip(module)
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl and bash are needed")
    page = (ROOT / "docs" / "service.md").read_text()
    section = page.split("## Your own service in ten minutes\n")[1].split("\n## ")[0]
    install, *blocks = [block.body for block in fenced_blocks(section) if block.language == "bash"]
    assert "pip install" in install
    from service.sites import free_port

    port = str(free_port())
    ready = f"for i in $(seq 300); do curl -s --fail http://127.0.0.1:{port}/health/ready && break; sleep 1; done"
    served = f"calcode serve site.toml & SERVER=$!; trap 'kill $SERVER; wait $SERVER' EXIT\n{ready}\n"
    assert blocks.count("calcode serve site.toml\n") == 1
    script = "".join(served if block == "calcode serve site.toml\n" else block for block in blocks)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    command = tmp_path / "bin" / "calcode"
    command.write_text(f"#!{sys.executable}\nfrom calcode.cli import main\nmain()\n")
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("8470", port)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}:{':'.join(sys.path)}",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r'"action": ?"defer"', done.stdout)
    (reviews,) = re.findall(r"^\[\{.*\}\]$", done.stdout, re.MULTILINE)
    (review,) = json.loads(reviews)
    assert (review["reviewer"], review["label"], review["blind"]) == ("a.jones", "mel", True)
    assert "Whole: " in done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: then no warning is counted, and --strict lets all of them pass.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_the_built_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    found = {str(page.relative_to(site)): loads.findall(page.read_text()) for page in site.rglob("*.html")}
    assert {page: tags for page, tags in found.items() if tags} == {}
