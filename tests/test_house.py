"""The house itself: who may import whom, what a bare import loads, and what the wheel carries.

`python tests/test_house.py` writes the table of rooms below into docs/house.md.
"""

from __future__ import annotations

import ast
import email
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from doc_blocks import ROOT, python_steps

import calcode

SOURCE = ROOT / "src" / "calcode"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EVERYTHING_ABOVE = ("everything above",)

# Every room in the order of the corridor: its name, what it holds, and what it may import. A room imports
# only from rooms that stand above it. `arrays`, `errors` and `files` are the ground that every room stands on.
GROUND = ("arrays", "errors", "files")
ROOMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("arrays", "names for array types", ()),
    ("errors", "errors and warnings that callers tell apart", ()),
    ("files", "files that appear whole or not at all, canonical JSON", ()),
    ("kernels", "the hot loops: distances, kernel weights, neighbours; CPU and GPU", ()),
    ("method", "METHOD.md in order, from `Evidence` to `Decisions`", ("kernels",)),
    ("metrics", "coverage and what belongs with it, intervals, subgroups, differences", ("method",)),
    ("cohorts", "feature, prompt and decision files; roles; selecting rows", ("method",)),
    ("datasets", "published data sets, images, prompt templates, the check of a folder", ("cohorts", "kernels")),
    ("backbones", "frozen image-text models, one per file", ("cohorts", "datasets", "kernels", "method")),
    ("baselines", "one published method per file", ("kernels", "method")),
    (
        "site",
        "[The site model](site-method.md) in order: recalibration from reviewed local cases",
        ("cohorts", "kernels", "method", "metrics"),
    ),
    ("monitor", "[Monitoring](monitor.md): alarms that are valid at every look", ("method", "metrics", "site")),
    ("report", "templates, charts, LaTeX", ("cohorts", "method", "metrics", "site", "monitor")),
    (
        "engines",
        "where the work runs: this process, a GPU, Ray",
        ("backbones", "cohorts", "datasets", "kernels", "method", "site"),
    ),
    ("toml_mistakes", "what is wrong with a file of settings, in sentences", ()),
    ("study", "an experiment per file: its jobs, its table, its section of the page", EVERYTHING_ABOVE),
    ("sklearn", "the meta-estimator for scikit-learn", ("cohorts", "method")),
    ("demo", "the demonstration on real skin images", EVERYTHING_ABOVE),
    ("service", "decisions over HTTP", EVERYTHING_ABOVE),
    ("cli", "the command line, one file per command", EVERYTHING_ABOVE),
)

# Methods of a room that lead to a room further down, imported inside the method, when it is called.
WHEN_ASKED: dict[str, tuple[str, ...]] = {"method": ("cohorts", "metrics", "site")}

# Libraries beyond the standard one that a room may load when it is itself imported.
AT_ONCE: dict[str, frozenset[str]] = {
    "cli": frozenset({"numpy", "click", "rich", "typer"}),
    # The room of an extra; nothing above it imports it.
    "service": frozenset(
        {
            "alembic",
            "cryptography",
            "fastapi",
            # service/hospital, which is loaded where the site file asks for DICOM.
            "highdicom",
            "numpy",
            "orjson",
            "prometheus_client",
            "pydantic",
            "pydicom",
            "pynetdicom",
            "sqlalchemy",
            "starlette",
            "uvicorn",
        }
    ),
    "sklearn": frozenset({"numpy", "sklearn"}),
    "study": frozenset({"numpy", "pandas", "pydantic"}),
    # Two rooms of extras read such files.
    "toml_mistakes": frozenset({"pydantic"}),
}
AT_ONCE_ANYWHERE = frozenset({"numpy"})

# What `import calcode` may load: numpy, and none of the rooms at the edge.
LOADED_BY_BARE_IMPORT = frozenset({"calcode", "numpy"})
EDGES = frozenset(
    [
        "backbones",
        "baselines",
        "cli",
        "datasets",
        "demo",
        "engines",
        "monitor",
        "report",
        "service",
        "site",
        "sklearn",
        "study",
        "toml_mistakes",
    ]
)

# File formats that can run code when they are read.
PICKLES = frozenset({"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"})


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import statement: who imports what, where, and whether it runs when the module is loaded."""

    room: str
    target: str
    when: Literal["at once", "when called", "for types"]
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.room} imports {self.target} ({self.when})"


def room_of(path: Path) -> str:
    """The room of a file: its module or package directly under calcode; the front door is `__init__`."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def rooms_in_the_tree() -> set[str]:
    return {room_of(path) for path in source_files()} - {"__init__"}


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    tree = ast.parse(path.read_text(), filename=str(path))
    pending: list[tuple[ast.AST, Literal["at once", "when called", "for types"]]] = [(tree, "at once")]
    while pending:
        node, when = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            when = "when called"
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += [(child, when) for child in node.orelse]
            pending += [(child, "for types") for child in node.body]
            continue
        elif isinstance(node, ast.Import | ast.ImportFrom):
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            for target in _targets(node):
                yield Import(room=room_of(path), target=target, when=when, place=place)
        pending += [(child, when) for child in ast.iter_child_nodes(node)]


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Full names of the modules; `from calcode import x` counts as the room calcode.x."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative imports hide the direction"
    assert node.module is not None
    if node.module == "calcode":
        return [f"calcode.{alias.name}" for alias in node.names]
    return [node.module]


ALL_IMPORTS = [entry for path in source_files() for entry in imports_of(path)]


def allowed_rooms(room: str) -> frozenset[str]:
    """Rooms that the table lets `room` import, itself and the ground included."""
    names = [name for name, _, _ in ROOMS]
    above = names[: names.index(room)]
    may_import = ROOMS[names.index(room)][2]
    return frozenset(above if may_import == EVERYTHING_ABOVE else may_import) | {room, *GROUND}


def rendered_table() -> str:
    """The table for docs/house.md: the rooms that exist, in the order of the corridor."""
    rows = ["| room | holds | may import |", "|---|---|---|"]
    present = rooms_in_the_tree()
    for name, holds, may_import in ROOMS:
        if name in present:
            suffix = "/" if (SOURCE / name).is_dir() else ".py"
            others = ", ".join(other for other in may_import if other in present or other in EVERYTHING_ABOVE)
            later = f"; when asked: {', '.join(WHEN_ASKED[name])}" if name in WHEN_ASKED else ""
            rows.append(f"| `{name}{suffix}` | {holds} | {others or 'numpy'}{later} |")
    return "\n".join(rows)


def test_every_module_has_a_room_in_the_table() -> None:
    assert rooms_in_the_tree() - {name for name, _, _ in ROOMS} == set()


def test_rooms_import_only_what_stands_above_them() -> None:
    names = [name for name, _, _ in ROOMS]
    assert len(set(names)) == len(names)
    for position, (name, _, may_import) in enumerate(ROOMS):
        if may_import != EVERYTHING_ABOVE:
            assert set(may_import) <= set(names[:position]), name


def test_imports_follow_the_table() -> None:
    wrong = []
    for entry in ALL_IMPORTS:
        package, _, rest = entry.target.partition(".")
        target = rest.partition(".")[0]
        if package != "calcode" or entry.room == "__init__" or target == "__version__":
            continue
        later = WHEN_ASKED.get(entry.room, ()) if entry.when != "at once" else ()
        if target not in allowed_rooms(entry.room).union(later):
            wrong.append(str(entry))
    assert wrong == []


def test_heavy_libraries_are_imported_inside_the_functions_that_use_them() -> None:
    wrong = []
    for entry in ALL_IMPORTS:
        package = entry.target.partition(".")[0]
        ours = package == "calcode" or package in sys.stdlib_module_names
        if entry.when == "at once" and not ours and package not in AT_ONCE.get(entry.room, AT_ONCE_ANYWHERE):
            wrong.append(str(entry))
    assert wrong == []


def test_every_library_is_named_in_the_project_file() -> None:
    named = [*PROJECT["dependencies"], *(n for extra in PROJECT["optional-dependencies"].values() for n in extra)]
    distributions = {re.split(r"[^\w-]", name)[0].replace("-", "_") for name in named}
    modules = {
        "argon2_cffi": "argon2",
        "faiss_cpu": "faiss",
        "open_clip_torch": "open_clip",
        "pillow": "PIL",
        "scikit_learn": "sklearn",
    }
    known = {modules.get(name, name) for name in distributions} | {"calcode", "calcode_demo_data"}
    used = {entry.target.partition(".")[0] for entry in ALL_IMPORTS} - sys.stdlib_module_names
    assert used - known == set()


def test_nothing_reads_or_writes_pickles() -> None:
    imported = [str(entry) for entry in ALL_IMPORTS if entry.target.partition(".")[0] in PICKLES]
    allowing = [path for path in source_files() if re.search(r"allow_pickle\s*=\s*True", path.read_text())]
    assert imported == []
    assert allowing == []


def test_the_plan_in_the_docs_is_the_table() -> None:
    page = (ROOT / "docs" / "house.md").read_text()
    assert rendered_table() in page, "run: python tests/test_house.py"


def test_a_bare_import_is_light() -> None:
    # numpy first, with what belongs to it, so that only what calcode itself adds is seen.
    script = (
        "import sys, numpy, numpy.linalg, numpy.random, numpy.typing\n"
        "before = set(sys.modules)\n"
        "import calcode\n"
        "print('bare', *sorted(set(sys.modules) - before))\n"
        "[getattr(calcode, name) for name in calcode.__all__]\n"
        "print('used', *sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    bare, loaded = (line.split()[1:] for line in done.stdout.splitlines())
    # The command line must heed Ctrl-C before anything slow is loaded, so public names come when they are used.
    assert [name for name in bare if name.startswith("calcode.")] == []
    foreign = {name.partition(".")[0] for name in loaded} - LOADED_BY_BARE_IMPORT - sys.stdlib_module_names
    assert "calcode.method.evidence" in loaded
    assert foreign == set()
    assert [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in EDGES] == []


def test_every_public_name_is_there_and_listed() -> None:
    promised = {"Action", "Calcode", "Decisions", "Evidence", "Reason", "select_operating_point", "split_roles"}
    assert promised <= set(calcode.__all__)
    assert [name for name in calcode.__all__ if not hasattr(calcode, name)] == []


def test_one_version_everywhere() -> None:
    version = calcode.__version__
    assert PROJECT["dynamic"] == ["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_the_commands_of_the_package_lead_to_functions(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_research_software_says_so() -> None:
    for page in ("README.md", "docs/index.md", "docs/promises.md"):
        assert "not a medical device" in (ROOT / page).read_text(), page


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_carries_the_package_and_nothing_else(distributions: Path) -> None:
    with zipfile.ZipFile(wheel_in(distributions)) as wheel:
        names = wheel.namelist()
        (metadata_name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(metadata_name))
    packaged = {name.removeprefix("calcode/") for name in names if name.startswith("calcode/")}
    pages = [path for suffix in ("html", "css") for path in SOURCE.rglob(f"*.{suffix}")]
    assert len(pages) >= 4
    in_the_tree = {str(path.relative_to(SOURCE)) for path in [*source_files(), *pages]}
    assert in_the_tree | {"py.typed"} <= packaged
    assert all(name.startswith("calcode/") or ".dist-info/" in name for name in names)
    # The demonstration data are non-commercial: no features, weights or images travel with the BSD code.
    data = re.compile(r"\.(parquet|npz|npy|safetensors|onnx|jpe?g|png|csv)$")
    assert [name for name in names if data.search(name)] == []
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_distribution_leaves_the_demonstration_data_out(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 0}
    assert {"src", "tests", "docs", "LICENSE", "pyproject.toml"} <= folders
    assert "demo-data" not in folders


@pytest.mark.timeout(900)
def test_the_wheel_works_in_an_empty_environment(distributions: Path, tmp_path: Path) -> None:
    environment = tmp_path / "empty"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    # Nothing of the environment that runs the tests may be seen from the new one.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel_in(distributions)))
    page = tmp_path / "own_model.py"
    steps = python_steps((ROOT / "docs" / "own-model.md").read_text())
    page.write_text("\n".join(step.code for step in steps) + "\nimport calcode\nprint(calcode.__file__)\n")
    where = run(python, "-I", str(page)).split()[-1]
    assert Path(where).is_relative_to(environment)
    assert "decide" in run(str(environment / "bin" / "calcode"), "--help")


if __name__ == "__main__":
    page = ROOT / "docs" / "house.md"
    parts = re.split(r"(<!-- rooms -->\n).*?(<!-- end of rooms -->)", page.read_text(), flags=re.DOTALL)
    page.write_text("".join([*parts[:2], "\n", rendered_table(), "\n\n", *parts[2:]]))
