"""Reference vectors of SAPS and clustered prediction from TorchCP 1.2.1, for tests/data/torchcp.

Run with the interpreter of an environment that holds torch and ``torchcp==1.2.1`` (installed with
``--no-deps``), never with the project's own:

    /path/to/torchcp/bin/python benchmarks/baselines/make_torchcp_vectors.py

Nothing of TorchCP is copied: it is called, and what it returned is stored.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).parents[2] / "tests" / "data" / "torchcp"
SEED = 7
LEVELS = (0.05, 0.1)
WEIGHTS = (0.05, 0.2)


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for what TorchCP imports for training losses, graphs and language models alone."""

    names = ("torchsort", "tqdm", "torchvision", "torch_geometric", "transformers", "PIL", "torch_cluster")

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        if fullname.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        module = types.ModuleType(spec.name)
        module.__getattr__ = self._anything  # type: ignore[method-assign]
        return module

    @staticmethod
    def _anything(name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        pass


def saps_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    probabilities = rng.dirichlet(np.full(7, 0.6), size=500)
    labels = np.array([rng.choice(7, p=row) for row in probabilities])
    return {"probs_cal": probabilities[:200], "y_cal": labels[:200], "probs_test": probabilities[200:]}


def cluster_inputs() -> dict[str, np.ndarray]:
    """Twenty classes of three kinds: easy, fair and hard; some of them rare, one absent."""
    rng = np.random.default_rng(12)
    n_classes = 20
    share = np.where(np.arange(n_classes) % 9 == 8, 0.1, 1.0)
    share[13] = 0.0
    labels = rng.choice(n_classes, size=1400, p=share / share.sum())
    strength = np.array([5.0, 3.0, 1.5])[labels % 3]
    logits = rng.normal(size=(1400, n_classes))
    logits[np.arange(1400), labels] += strength
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return {"probs_cal": probabilities[:1250], "y_cal": labels[:1250], "probs_test": probabilities[1250:]}


def saps_vectors() -> dict[str, np.ndarray]:
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import SAPS

    data = saps_inputs()
    tensors = {key: torch.from_numpy(value) for key, value in data.items()}
    torch.manual_seed(SEED)
    data["U_cal"] = torch.rand(200).numpy()
    data["U_test"] = torch.rand(300, 7).numpy()
    for weight in WEIGHTS:
        score = SAPS(score_type="identity", weight=weight)
        torch.manual_seed(SEED)
        data[f"w{weight}__cal_scores"] = score(tensors["probs_cal"], tensors["y_cal"]).numpy()
        data[f"w{weight}__test_scores"] = score(tensors["probs_test"]).numpy()
        for level in LEVELS:
            torch.manual_seed(SEED)
            predictor = SplitPredictor(score)
            predictor.calculate_threshold(tensors["probs_cal"], tensors["y_cal"], level)
            data[f"w{weight}_a{level}__q"] = np.asarray(predictor.q_hat)
            sets = predictor.predict_with_logits(tensors["probs_test"])
            data[f"w{weight}_a{level}__sets"] = sets.numpy().astype(bool)
    return data


def cluster_vectors() -> dict[str, np.ndarray]:
    import torch
    from torchcp.classification.predictor import ClusteredPredictor
    from torchcp.classification.score import APS

    data = cluster_inputs()
    tensors = {key: torch.from_numpy(value) for key, value in data.items()}
    for level in LEVELS:
        for clusters in (2, 3, 4):
            torch.manual_seed(SEED)
            predictor = ClusteredPredictor(
                APS(score_type="identity", randomized=False),
                ratio_clustering=0.5,
                num_clusters=clusters,
                split="random",
            )
            predictor.calculate_threshold(tensors["probs_cal"], tensors["y_cal"], level)
            key = f"c{clusters}_a{level}"
            data[f"{key}__clustering_rows"] = predictor.idx1.numpy()
            data[f"{key}__clusters"] = predictor.cluster_assignments.numpy().astype(np.int64)
            data[f"{key}__q"] = predictor.q_hat.numpy()
            sets = predictor.predict_with_logits(tensors["probs_test"])
            data[f"{key}__sets"] = sets.numpy().astype(bool)
    return data


def main() -> None:
    # Last in the list: whatever is installed comes first.
    sys.meta_path.append(EmptyModules())
    OUTPUT.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUTPUT / "saps.npz", **saps_vectors())
    np.savez_compressed(OUTPUT / "clustered.npz", **cluster_vectors())
    for path in sorted(OUTPUT.glob("*.npz")):
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
