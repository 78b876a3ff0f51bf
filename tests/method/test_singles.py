"""Single answers that are certified, or get a second label (SITE.md S17)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from worlds import World, fit_quietly

from calcode import Action, Calcode, CalcodeWarning, Evidence, SupportAudit
from calcode.errors import RoleError, SettingsError
from calcode.method.audit import neighbour_distance
from calcode.method.singles import SinglesCertificate

EASY = World(n_classes=3, dimension=6, spread=0.2, seed=1)


@pytest.fixture(scope="module")
def roles() -> dict[str, Evidence]:
    return EASY.roles(n=200, n_test=300, named=True)


@pytest.fixture
def model(roles: dict[str, Evidence]) -> Calcode:
    return fit_quietly(Calcode(), roles)


@pytest.mark.parametrize(
    ("n", "wrong", "risk"), [(45, 0, 0.05), (22, 0, 0.1), (200, 4, 0.05), (60, 3, 0.05), (0, 0, 0.5)]
)
def test_the_test_is_binomial(n: int, wrong: int, risk: float) -> None:
    certificate = SinglesCertificate(n=n, wrong=wrong, risk=risk, confidence=0.9, sample_digest="")
    assert certificate.certified == (n > 0 and binom.cdf(wrong, n, risk) <= 0.1)
    fewer = SinglesCertificate(n=max(n - 1, 0), wrong=wrong, risk=risk, confidence=0.9, sample_digest="")
    if (n, wrong) in ((45, 0), (22, 0)):
        assert certificate.certified
        assert not fewer.certified


def test_a_certified_model_answers_as_before_and_says_so(model: Calcode, roles: dict[str, Evidence]) -> None:
    sample, images = roles["test"][:200], roles["test"][200:]
    before = model.decide(images)
    assert (before.action == Action.LABEL).mean() > 0.2
    digest = model.digest_
    certificate = model.certify_singles(sample, risk=0.3)
    # One image per patient.
    assert certificate.n <= len(set(sample.groups.tolist()))
    assert certificate.certified
    after = model.decide(images)
    np.testing.assert_array_equal(before.sets, after.sets)
    assert certificate.sentence in after.promises
    assert model.digest_ != digest


def test_without_a_certificate_every_single_answer_gets_the_second_ranked_label(
    model: Calcode, roles: dict[str, Evidence], tmp_path: Path
) -> None:
    sample, images = roles["test"][:200], roles["test"][200:]
    before = model.decide(images)
    certificate = model.certify_singles(sample, risk=0.0001)
    assert not certificate.certified
    after = model.decide(images)
    single = before.action == Action.LABEL
    assert not (after.action == Action.LABEL).any()
    assert (after.sets >= before.sets).all()
    assert (after.sets[single].sum(axis=1) == 2).all()
    np.testing.assert_array_equal(after.sets[~single], before.sets[~single])
    np.testing.assert_array_equal(after.sets, after.scores <= after.threshold)
    # The first two by probability have the two smallest APS scores.
    first_two = np.argsort(after.scores[single], axis=1, kind="stable")[:, :2]
    assert np.take_along_axis(after.sets[single], first_two, axis=1).all()
    assert any(sentence.startswith("Not certified") for sentence in after.promises)
    model.save(tmp_path / "m.safetensors")
    loaded = Calcode.load(tmp_path / "m.safetensors")
    assert loaded.certificate_ == certificate
    np.testing.assert_array_equal(loaded.decide(images).sets, after.sets)


def test_a_new_fit_forgets_the_certificate(model: Calcode, roles: dict[str, Evidence]) -> None:
    model.certify_singles(roles["test"], risk=0.3)
    fit_quietly(model, roles)
    assert model.certificate_ is None
    assert any("not certified" in sentence for sentence in model.promises_)


def test_images_that_made_the_model_cannot_certify_it(model: Calcode, roles: dict[str, Evidence]) -> None:
    for role in ("validation", "gate", "calibration"):
        with pytest.raises(RoleError, match=f"used to fit the model as {role} "):
            model.certify_singles(roles[role])
    certificate = model.certify_singles(roles["test"], risk=0.0001)
    with pytest.raises(SettingsError, match="risk: 1.5"):
        model.certify_singles(roles["test"], risk=1.5)
    assert model.certificate_ == certificate  # what fails changes nothing


def test_reference_images_may_certify_and_leave_their_own_row_out(roles: dict[str, Evidence]) -> None:
    model = fit_quietly(Calcode(audit=["distance"]), roles)
    reference = roles["reference"]
    model.certify_singles(reference)
    found = model.audit_.without_own_rows().statistic(reference)
    for row in (0, 7, 199):
        others = np.arange(200) != row
        expected = neighbour_distance(
            reference.embeddings[[row]], reference=reference.embeddings[others], n_neighbors=10
        )
        np.testing.assert_allclose(found[row], expected[0], atol=1e-15)
    # Other images have no row of their own to leave out.
    test = roles["test"]
    np.testing.assert_allclose(
        model.audit_.without_own_rows().statistic(test), model.audit_.statistic(test), atol=1e-15
    )


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11])
def test_a_small_reference_leaves_out_nothing_but_an_own_row(n: int) -> None:
    roles = World().roles()
    reference, test = roles["reference"][:n], roles["test"]
    audit = SupportAudit.fit(
        reference=reference, validation=roles["validation"], gate=roles["gate"], candidates=["distance"]
    )
    np.testing.assert_allclose(audit.without_own_rows().statistic(test), audit.statistic(test), atol=1e-15)
    found = audit.without_own_rows().statistic(reference)
    for row in range(n):
        expected = np.inf  # with no other image there is no support
        if n > 1:
            others = reference.embeddings[np.arange(n) != row]
            expected = neighbour_distance(reference.embeddings[[row]], reference=others, n_neighbors=10)[0]
        np.testing.assert_allclose(found[row], expected, atol=1e-15)


def test_an_answer_outside_the_label_space_is_wrong(model: Calcode, roles: dict[str, Evidence]) -> None:
    sample = roles["test"]
    outside = sample._replace(labels=np.full(len(sample), -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        certificate = model.certify_singles(outside)
    assert certificate.wrong == certificate.n > 0
