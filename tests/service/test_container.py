"""The Containerfile and the compose file, as far as they can be tried without containers.

What the build stage runs is run here on the files that it copies, with libraries from this environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from service.sites import ROOT, Process, Site

DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Containerfile and what follows them; continued lines are joined."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def said(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_the_instructions_are_known_and_in_order() -> None:
    words = [word for word, _ in instructions()]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert set(words) <= known
    assert words[0] == "FROM"
    assert words.count("FROM") == 2
    # Root installs, and nobody but the service's own user runs.
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    assert said("USER") == ["calcode"]
    (user,) = [rest for rest in said("RUN") if "useradd" in rest]
    assert user.split("&&")[0].split()[-1] == "calcode"
    python = {tuple(re.findall(r"python:(\d+)\.(\d+)", rest)[0]) for rest in said("FROM")}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert all(f">={major}.11" == needed and int(minor) >= 11 for major, minor in python)


def test_the_extras_exist_and_the_stages_hand_on_what_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', " ".join(said("RUN")))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (handed,) = [rest.split() for rest in said("COPY") if rest.startswith("--from=build ")]
    assert handed[1] == handed[2] == "/opt/calcode"
    assert json.loads(said("ENTRYPOINT")[0]) == ["/opt/calcode/bin/calcode"]
    assert "calcode" in project["scripts"]


def test_the_lock_file_has_hashes_for_all_that_the_service_needs() -> None:
    """`make lock` writes it. What a library needs is known here where its version is the one that is installed."""
    lines = (DEPLOY / "service.lock").read_text().replace("\\\n", " ").splitlines()
    locked: dict[str, set[str]] = {}
    for line in lines:
        requirement, *hashes = line.split("--hash=sha256:")
        pinned = Requirement(requirement)
        assert hashes, line
        assert all(re.fullmatch(r"[0-9a-f]{64}", text.strip()) for text in hashes), line
        (specifier,) = pinned.specifier
        assert specifier.operator == "==", line
        locked.setdefault(canonicalize_name(pinned.name), set()).add(specifier.version)
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', " ".join(said("RUN")))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    wanted, seen = [Requirement(f"calcode[{extras}]"), *map(Requirement, build)], set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name != "calcode":
            assert any(one.specifier.contains(version) for version in locked.get(name, ())), f"run make lock: {one}"
            if metadata.version(name) not in locked[name]:
                continue
        for extra in {"", *one.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            needs = map(Requirement, metadata.requires(name) or ())
            wanted += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    assert len({name for name, _ in seen}) > 40


@pytest.mark.timeout(600)
def test_what_the_build_stage_runs_makes_a_service_that_answers(tmp_path: Path, site: Site) -> None:
    source, prefix = tmp_path / "source", tmp_path / "opt"
    source.mkdir()
    for rest in said("COPY"):
        *names, target = rest.split()
        if not rest.startswith("--from"):
            for name in names:
                where = source / target / (Path(name).name if target.endswith("./") else "")
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, where)
    run = next(rest for rest in said("RUN") if "venv" in rest).replace("/opt/calcode", str(prefix))
    # No network: the libraries are those of this environment, the installation of calcode itself is real.
    made, libraries, rest = run.replace("pip install", "pip install --no-index -q").split("&&", 2)
    assert libraries.split()[-3:] == ["--require-hashes", "-r", "service.lock"]
    assert (source / "service.lock").is_file()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    shell = ["/bin/sh", "-ec"]
    here = f"{shlex.quote(str(Path(sys.executable).parent))}:{environment['PATH']}"
    environment["PATH"] = here
    subprocess.run([*shell, made], check=True, cwd=source, env=environment)
    (packages,) = (prefix / "lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*shell, rest], check=True, cwd=source, env=environment)
    bill = json.loads((prefix / "sbom.json").read_text())
    names = {component["name"].lower() for component in bill["components"]}
    assert {"fastapi", "sqlalchemy", "numpy", "cryptography", "psycopg"} <= names

    (entry,) = (json.loads(rest)[0].replace("/opt/calcode", str(prefix)) for rest in said("ENTRYPOINT"))
    command = json.loads(said("CMD")[0])
    assert command == ["serve", "/etc/calcode/site.toml"]
    where = "import calcode; print(calcode.__file__)"
    found = subprocess.run(
        [prefix / "bin" / "python", "-c", where], check=True, capture_output=True, text=True, env=environment
    )
    assert str(packages) in found.stdout, "the installed package is tried, not the checkout"

    class Installed(Process):
        _program = (entry,)

    process = Installed(site, environment={"PYTHONPATH": ""}).start()
    try:
        (health,) = (rest.partition("CMD ")[2] for rest in said("HEALTHCHECK"))
        check = [word.replace("/opt/calcode", str(prefix)) for word in json.loads(health)]
        assert ":8470/" in check[-1]
        assert said("EXPOSE") == ["8470"]
        # What is tried is the line, not how quick this machine is.
        check[-1] = check[-1].replace(":8470/", f":{process.port}/").replace("timeout=2", "timeout=60")
        subprocess.run(check, check=True, env=environment, timeout=120)
    finally:
        assert process.stop() == 0
    assert subprocess.run(check, check=False, env=environment, timeout=60, capture_output=True).returncode != 0


def test_the_compose_file_names_what_exists() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service, database = compose["services"]["service"], compose["services"]["database"]
    for part in (service, database):
        assert set(part["secrets"]) <= set(compose["secrets"])
        for volume in part["volumes"]:
            name = volume.partition(":")[0]
            assert name.startswith("/") or name in compose["volumes"]
    assert set(service["depends_on"]) <= set(compose["services"])
    volumes = [volume.split(":")[1] for volume in service["volumes"]]
    assert said("VOLUME")[0] in volumes
    assert str(Path(json.loads(said("CMD")[0])[1]).parent) in volumes
    example = tomllib.loads((DEPLOY / "site.example.toml").read_text())
    assert example["data"] in volumes
    assert set(example["checkpoints"]["folders"]) <= set(volumes)
    assert service["ports"] == [f"127.0.0.1:{example['port']}:{said('EXPOSE')[0]}"]
