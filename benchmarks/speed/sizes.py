"""Fit and decide at one size against their floors, and as commands; each figure from a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from speed.cohort import CLASSES, Size, evidence_of, fitted, fitted_roles, prompts, test_images
from speed.measuring import child, interleaved, medians, peak_megabytes, ratio
from speed.products import bare_products, decision_pairs, fit_pairs

from calcode import Calcode

SIZES = {
    "paper-512": Size(dimension=512),
    "paper-1152": Size(dimension=1152),
    "square-20000": Size(dimension=512, n_calibration=20_000, n_test=20_000),
}


def time_size(name: str, repeats: str) -> dict[str, Any]:
    """Child: floor, decide, floor of fit and fit in turns."""
    size = SIZES[name]
    roles, test = fitted_roles(size), test_images(size)
    model = fitted(roles)
    seconds = interleaved(
        {
            "floor": bare_products(decision_pairs(test, roles)),
            "decide": lambda: model.decide(test),
            "fit_floor": bare_products(fit_pairs(roles)),
            "fit": lambda: fitted(roles),
        },
        repeats=int(repeats),
    )
    return {
        "seconds": medians(seconds),
        "decide_over_floor": ratio(seconds, "decide", to="floor"),
        "fit_over_floor": ratio(seconds, "fit", to="fit_floor"),
        "model": repr(model),
    }


def prepare(name: str, folder: str) -> dict[str, Any]:
    """Child: fit, keep the model, and say what that took."""
    size = SIZES[name]
    model = fitted(fitted_roles(size))
    peak = peak_megabytes()
    model.save(Path(folder) / "model.safetensors")
    np.save(Path(folder) / "test.npy", test_images(size).embeddings.astype(np.float32))
    return {"peak_megabytes": peak}


def write_file(name: str, folder: str) -> dict[str, Any]:
    """Child: all roles of a size in one feature file, as `calcode embed` would leave them."""
    from calcode.cohorts import write_features

    size = SIZES[name]
    roles = fitted_roles(size) | {"test": test_images(size)}
    write_features(
        Path(folder) / "images.parquet",
        embeddings=np.concatenate([evidence.embeddings for evidence in roles.values()]),
        ids=[f"{role}-{i}" for role, evidence in roles.items() for i in range(len(evidence))],
        label_names=[CLASSES[label] for evidence in roles.values() for label in evidence.labels],
        roles=[role for role, evidence in roles.items() for _ in range(len(evidence))],
        prompts=prompts(size.dimension),
    )
    return {}


def as_commands(folder: str, *, repeats: int) -> dict[str, float]:
    """Median seconds of `calcode fit` and `calcode decide`, file in, file out, from the start of the program."""
    place, program = Path(folder), [sys.executable, "-c", "from calcode.cli import main; main()"]
    features, model = str(place / "images.parquet"), str(place / "fitted.safetensors")
    commands = {
        "fit": [*program, "fit", features, "-o", model],
        "decide": [*program, "decide", model, features, "--role", "test", "-o", str(place / "decisions.parquet")],
    }
    run = {name: partial(subprocess.run, words, check=True, capture_output=True) for name, words in commands.items()}
    return medians(interleaved(run, repeats=repeats))


def decide_in_memory(folder: str) -> dict[str, Any]:
    """Child: nothing but a model from its file and the images to decide on."""
    model = Calcode.load(Path(folder) / "model.safetensors")
    test = evidence_of(np.load(Path(folder) / "test.npy"))
    before = peak_megabytes()
    model.decide(test)
    return {"peak_megabytes": peak_megabytes(), "before_megabytes": before}


def measure(name: str, *, repeats: int) -> dict[str, Any]:
    """Times from one child, memory from two others."""
    result = child("time_size", name, str(repeats))
    with tempfile.TemporaryDirectory() as folder:
        result["fit_peak_megabytes"] = child("prepare", name, folder)["peak_megabytes"]
        memory = child("decide_in_memory", folder)
        child("write_file", name, folder)
        result["command_seconds"] = as_commands(folder, repeats=min(repeats, 3))
    result["decide_peak_megabytes"] = memory["peak_megabytes"]
    result["loaded_megabytes"] = memory["before_megabytes"]
    return result


TASKS = {"time_size": time_size, "prepare": prepare, "write_file": write_file, "decide_in_memory": decide_in_memory}
