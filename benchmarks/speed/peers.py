"""MAPIE, TorchCP and crepes on the probabilities of the same cohort, in an environment of their own.

They do split conformal prediction without a support audit, a localized rule or guards, so they need none of the
products; their times are shown as ratios to the same floor, to say what a whole decision costs beside them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from speed.cohort import Size, fitted, fitted_roles, test_images
from speed.measuring import ROOT, child, interleaved, medians
from speed.products import bare_products, decision_pairs

ENVIRONMENT = ROOT / ".cache" / "peers"
PACKAGES = ("torch==2.13.0", "numpy", "mapie==1.6.0", "crepes==0.9.1")
# It asks for libraries that only its training parts use.
ALONE = "torchcp==1.2.1"
PEERS = ("torchcp", "mapie", "crepes")
SIZE = Size(dimension=512)


def environment() -> Path:
    """The peers' interpreter; made on the first call."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    if ready.exists() or _complete(python):
        return python
    print(f"Making {ENVIRONMENT} for the peers (a few minutes, once)", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    cpu_only = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    for command in (
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [*pip, *cpu_only, *PACKAGES],
        [*pip, "--no-deps", ALONE],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    ready.touch()
    return python


def _complete(python: Path) -> bool:
    if not python.exists():
        return False
    check = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))"
    return subprocess.run([str(python), "-c", check, *PEERS], check=False).returncode == 0


def prepare_peers(folder: str, repeats: str) -> dict[str, Any]:
    """Child: floor and decide once more in this run, and the inputs of the peers."""
    from calcode.method.evidence import robust_probabilities

    roles, test = fitted_roles(SIZE), test_images(SIZE)
    model = fitted(roles)
    calibration = roles["calibration"]
    np.savez(
        Path(folder) / "inputs.npz",
        calibration=robust_probabilities(calibration.prompt_logits, trim=1),
        labels=calibration.require_labels(),
        test=robust_probabilities(test.prompt_logits, trim=1),
    )
    works = {"floor": bare_products(decision_pairs(test, roles)), "decide": lambda: model.decide(test)}
    return medians(interleaved(works, repeats=int(repeats)))


def measure(*, repeats: int) -> dict[str, Any]:
    """Every peer in a process of its own, right after ours."""
    try:
        python = environment()
    except (RuntimeError, OSError) as error:
        print(f"peers: skipped, their environment cannot be made ({error})", file=sys.stderr)
        return {"skipped": str(error)}
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"calcode": child("prepare_peers", folder, str(repeats))}
        script = Path(__file__).with_name("peer.py")
        for name in PEERS:
            inputs = str(Path(folder) / "inputs.npz")
            result[name] = child(name, inputs, str(repeats), python=str(python), script=script)
    floor = result["calcode"]["floor"]
    result["over_floor"] = {"calcode": {"decide": result["calcode"]["decide"] / floor}} | {
        name: {method: seconds / floor for method, seconds in result[name]["seconds"].items()} for name in PEERS
    }
    return result


TASKS = {"prepare_peers": prepare_peers}
