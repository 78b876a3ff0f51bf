"""Records, roles and predictions refuse what would mislead."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from worlds import World

from calcode import CalcodeError
from calcode.baselines import Prediction, Record, Roles


def record(**changes):
    words = dict.fromkeys(("name", "title", "paper", "venue", "assumes", "selects", "differs"), "words")
    return Record(**(words | {"year": 2025} | changes))


def test_transductive_record_says_what_one_image_means():
    with pytest.raises(CalcodeError, match="single_image"):
        record(transductive=True)
    assert record(transductive=True, single_image="joins the pool").transductive


def test_record_and_prediction_are_frozen():
    with pytest.raises(FrozenInstanceError):
        record().year = 1999
    prediction = Prediction(sets=np.ones((1, 2), dtype=bool), top_label=np.zeros(1, int), top_probability=np.ones(1))
    with pytest.raises(ValueError, match="read-only"):
        prediction.sets[0, 0] = False
    assert prediction.accepted.all()


def test_roles_refuse_what_no_method_can_use():
    drawn = World().roles(n=20)
    fitted = {name: drawn[name] for name in ("reference", "validation", "gate", "calibration")}
    Roles(**fitted)
    with pytest.raises(CalcodeError, match="gate: the role holds no image"):
        Roles(**(fitted | {"gate": drawn["gate"][:0]}))
    with pytest.raises(CalcodeError, match="validation: classes"):
        Roles(**(fitted | {"validation": drawn["validation"].restrict(["c1", "c0", "c2", "c3"])}))
    fewer = drawn["calibration"].restrict(["c0", "c1"])
    small = {name: evidence.restrict(["c0", "c1"]) for name, evidence in fitted.items()}
    assert (fewer.labels < 0).any()
    with pytest.raises(CalcodeError, match="labels lie outside the classes"):
        Roles(**small)
