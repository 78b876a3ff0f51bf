"""One job of a study: what it computes, from which inputs, and the key that names its file."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calcode import __version__
from calcode.errors import StudyError
from calcode.files import canonical_json
from calcode.study.specification import Combination, Features, Setting

#: Packages whose code does not affect the result of a job; the module that runs the job always counts.
_NO_PART = frozenset(
    {"backbones", "cli", "datasets", "demo", "engines", "monitor", "report", "service", "sklearn", "study"}
)
#: Files of the study that affect every job.
_SHARED = ("cohorts", "decisions", "methods", "pool", "variants")
_LIBRARIES = ("numpy", "scipy", "scikit-learn")
#: Text for people; changing it repeats no work.
_WORDS = {"short", "title", "description", "shifted", "min_n", "backbones"}
_KEY_LENGTH = 20


@dataclass(frozen=True, kw_only=True)
class Job:
    """A combination of setting and backbone, and what to compute for it.

    Attributes
    ----------
    runner : str
        "module:function"; the function takes `SettingCohorts` and the options, returns rows or decisions by variant.
    what : str
        Short name for file names and progress, such as that of the method.
    setting : Setting
    backbone : str
    features : Features
    options : mapping of str to plain values
    resplit : int or None
        Seed of a new assignment of the roles.
    """

    runner: str
    what: str
    setting: Setting
    backbone: str
    features: Features
    options: Mapping[str, Any] = field(default_factory=dict)
    resplit: int | None = None

    @functools.cached_property
    def key(self) -> str:
        """Hash of everything on which the result depends: features, settings, method, code and library versions."""
        content = {
            "runner": self.runner,
            "code": code_digest(self.runner.partition(":")[0]),
            "libraries": library_versions(),
            "features": self.features.digest,
            "setting": self.setting.model_dump(mode="json", exclude=_WORDS),
            "backbone": self.backbone,
            "options": plain(self.options),
            "resplit": self.resplit,
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_KEY_LENGTH]

    @property
    def name(self) -> str:
        """Name for people: setting, backbone and `what`."""
        parts = [self.setting.name, self.backbone, self.what]
        return ".".join(parts if self.resplit is None else [*parts, f"split-{self.resplit}"])

    def path(self, folder: Path) -> Path:
        """Path of its file in a study's output folder, in a subfolder named after the module that runs it."""
        module = self.runner.partition(":")[0].rpartition(".")[2].replace("_", "-")
        return folder / "work" / module / f"{self.name}.{self.key}.parquet"


def job(
    runner: str, what: str, place: Combination, options: Mapping[str, Any] | None = None, *, resplit: int | None = None
) -> Job:
    """A job for a setting on a backbone that has features for it.

    Parameters
    ----------
    runner, what, options, resplit
        As in `Job`.
    place : (Setting, Backbone)
    """
    setting, backbone = place
    features = backbone.features_for(setting.name)
    if features is None:
        raise StudyError(f"backbones: {backbone.name} has no features for {setting.name}")
    return Job(
        runner=runner,
        what=what,
        setting=setting,
        backbone=backbone.name,
        features=features,
        options=dict(options or {}),
        resplit=resplit,
    )


def plain(value: Any) -> Any:
    """Options as values that JSON can represent, which has no infinity."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries on which results may depend."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


@functools.cache
def code_digest(module: str) -> str:
    """SHA-256 of the code behind a runner: all packages that results depend on, shared files and the module itself.

    Pages, commands and other experiments are not included: changing them repeats no work.
    """
    root = Path(__file__).parents[1]
    below = [path for path in root.rglob("*.py") if path.relative_to(root).with_suffix("").parts[0] not in _NO_PART]
    shared = [root / "study" / f"{name}.py" for name in _SHARED]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise StudyError(f"runner: no module {module!r}")
    digest = hashlib.sha256(__version__.encode())
    for path in sorted({*below, *shared, Path(found.origin)}):
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
