"""Sites that take images, with a tower small enough for a test."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from service.sites import ROOT, Site, sign

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.backbones import load_backbone
from calcode.cohorts import Prompts, write_prompts
from calcode.method.signatures import write_private_key

TOWER = ROOT / "tests" / "data" / "backbones" / "tiny_tower.onnx"


def make_picture_site(folder: Path, *, tables: str = "", database: str | None = None) -> Site:
    """A site whose model was fitted on embeddings like those of the tiny tower; `tables` end its site file."""
    files, prompts = _template()
    for file in files.iterdir():
        shutil.copy(file, folder)
    where = "" if database is None else f'database = "{database}"\n'
    (folder / "site.toml").write_text(
        f'name = "hospital/pictures"\ndata = "data"\nport = 0\n{where}[[lines]]\nprompts = "p.prompts.safetensors"\n'
        f'model = "model.safetensors"\ntrusted = ["signer.key.pub"]\nimage_tower = "{TOWER}"\n{tables}'
    )
    return Site(file=folder / "site.toml", key=folder / "signer.key", prompts=prompts)


@cache
def _template() -> tuple[Path, Prompts]:
    """The files that every such site begins with, made once."""
    folder = Path(tempfile.mkdtemp(prefix="calcode-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    dimension = load_backbone(TOWER).card.dimension
    rng = np.random.default_rng(0)
    prompts = Prompts(text=rng.normal(size=(3, 4, dimension)), temperature=0.2, classes=["a", "b", "c"])

    def role(n: int) -> Evidence:
        rows = rng.normal(size=(n, dimension))
        labels = rng.integers(3, size=n)
        return Evidence.from_text(
            embeddings=rows / np.linalg.norm(rows, axis=1, keepdims=True),
            text=prompts.text,
            temperature=0.2,
            labels=labels,
            classes=prompts.classes,
            prompt_digest=prompts.digest,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        model = Calcode().fit(reference=role(80), validation=role(80), gate=role(80), calibration=role(80))
    model.save(folder / "model.safetensors")
    write_prompts(folder / "p.prompts.safetensors", prompts)
    write_private_key(folder / "signer.key")
    sign(folder / "model.safetensors", folder / "signer.key")
    return folder, prompts
