"""Times the split methods of TorchCP, MAPIE or crepes; run by bench_split.py in their own environment.

    /path/to/peers/bin/python peer_split.py {torchcp|mapie|crepes} inputs.npz repetitions

Prints one JSON object: method to the shortest seconds for calibration plus prediction.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from make_torchcp_vectors import EmptyModules

LEVEL = 0.05


def shortest(work: Callable[[], object], repetitions: int) -> float:
    work()  # imports, caches and allocations of the first call are not the method
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def torchcp_work(data: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    import torch

    sys.meta_path.append(EmptyModules())
    from torchcp.classification.predictor import ClassConditionalPredictor, SplitPredictor
    from torchcp.classification.score import APS, LAC, RAPS

    torch.set_num_threads(1)
    calibration, labels, test = (torch.from_numpy(data[key]) for key in ("calibration", "labels", "test"))

    def run(predictor_class: type, score: object) -> Callable[[], object]:
        def work() -> object:
            predictor = predictor_class(score)
            predictor.calculate_threshold(calibration, labels, LEVEL)
            return predictor.predict_with_logits(test)

        return work

    deterministic = {"score_type": "identity", "randomized": False}
    return {
        "lac": run(SplitPredictor, LAC(score_type="identity")),
        "aps": run(SplitPredictor, APS(**deterministic)),
        "raps": run(SplitPredictor, RAPS(penalty=0.01, kreg=2, **deterministic)),
        "mondrian": run(ClassConditionalPredictor, APS(**deterministic)),
    }


def mapie_work(data: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Identity(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose probabilities are its inputs."""

        def fit(self, X: np.ndarray, y: np.ndarray) -> Identity:
            self.classes_ = np.unique(y)
            self.fitted_ = True
            return self

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return X

        def predict(self, X: np.ndarray) -> np.ndarray:
            return self.classes_[X.argmax(axis=1)]

    fitted = Identity().fit(data["calibration"], data["labels"])

    def run(score: str) -> Callable[[], object]:
        def work() -> object:
            model = SplitConformalClassifier(
                fitted, confidence_level=1 - LEVEL, conformity_score=score, prefit=True, random_state=0
            )
            model.conformalize(data["calibration"], data["labels"])
            return model.predict_set(data["test"])

        return work

    return {"lac": run("lac"), "aps": run("aps"), "raps": run("raps")}


def crepes_work(data: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    from crepes import ConformalClassifier

    classes = np.arange(data["calibration"].shape[1])
    own = 1 - data["calibration"][np.arange(len(data["labels"])), data["labels"]]

    def split() -> object:
        model = ConformalClassifier()
        model.fit(own)
        return model.predict_set(1 - data["test"], confidence=1 - LEVEL, smoothing=False)

    def class_conditional() -> object:
        model = ConformalClassifier()
        model.fit(own, bins=data["labels"])
        # Every candidate is judged in the bin of its own class.
        return [
            model.predict_p(1 - data["test"][:, [k]], bins=np.full(len(data["test"]), k), smoothing=False)
            for k in classes
        ]

    return {"lac": split, "mondrian": class_conditional}


def main() -> None:
    package, path, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with np.load(path) as stored:
        data = {key: stored[key] for key in stored.files}
    works = {"torchcp": torchcp_work, "mapie": mapie_work, "crepes": crepes_work}[package](data)
    # crepes takes seconds where the others take milliseconds.
    count = min(repetitions, 3) if package == "crepes" else repetitions
    print(json.dumps({name: shortest(work, count) for name, work in works.items()}))


if __name__ == "__main__":
    main()
