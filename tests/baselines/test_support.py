"""What the audited compositions share."""

from __future__ import annotations

import numpy as np
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.baselines.protocol import Roles
from calcode.baselines.support import accepted_by, fitted_audit
from calcode.kernels import nearest_distances


def drawn():
    everything = World(spread=0.8).roles(n=120, n_test=60)
    test = everything.pop("test")
    return Roles(**everything), test, everything


def test_audit_is_the_models():
    roles, test, everything = drawn()
    audit = fitted_audit(roles, random_state=0)
    model = fit_quietly(Calcode(), everything)
    assert audit.name == model.audit_name_
    np.testing.assert_array_equal(audit.p_values(test), model.decide(test).p_audit)
    np.testing.assert_array_equal(accepted_by(audit.p_values(test)), model.decide(test).accepted)


def test_mean_audit_averages_the_distances():
    roles, test, _ = drawn()
    audit = fitted_audit(roles, random_state=0, average="mean")
    assert audit.average == "mean"
    distances = nearest_distances(test.embeddings, roles.reference.embeddings, n_neighbors=10).mean(axis=1)
    alone = type(audit).fit(
        reference=roles.reference,
        validation=roles.validation,
        gate=roles.gate,
        candidates=("distance",),
        average="mean",
    )
    np.testing.assert_allclose(alone.statistic(test), distances, rtol=0, atol=1e-15)
