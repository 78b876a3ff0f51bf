"""What holds for every registered method, CALCoDe included."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
from worlds import World

from calcode import CalcodeWarning, Evidence
from calcode.baselines import METHODS, Prediction, Record, Roles

FITTED = ("reference", "validation", "gate", "calibration")

#: Methods whose draws belong to positions in the batch.
RANDOMISED = {"aps-randomised", "saps", "cp-rvalue", "base-lcp", "rlcp"}

#: Methods that can be run: one is on record only, because its paper does not define it.
RUNNABLE = [name for name, method in METHODS.items() if method.record.reproducible]


def roles_of(evidence):
    return Roles(**{name: evidence[name] for name in FITTED})


def ordinary():
    world = World().roles(n=120, n_test=25)
    return roles_of(world), world["test"]


def absent_class():
    roles, test = ordinary()
    calibration = roles.calibration
    return replace(roles, calibration=calibration[calibration.labels != 2]), test


def absent_from_validation():
    roles, test = ordinary()
    validation = roles.validation
    return replace(roles, validation=validation[validation.labels != 3]), test


def two_classes():
    world = World(n_classes=2).roles(n=80, n_test=15)
    return roles_of(world), world["test"]


def one_prompt():
    world = World(n_prompts=1).roles(n=80, n_test=15)
    return roles_of(world), world["test"]


def two_prompts():
    world = World(n_prompts=2).roles(n=80, n_test=15)
    return roles_of(world), world["test"]


def all_tied():
    """Equal probabilities for every class, prompt and image, and few distinct embeddings."""
    rng = np.random.default_rng(0)

    def draw(n):
        return Evidence(
            embeddings=np.eye(4)[rng.integers(0, 2, n)],
            prompt_logits=np.zeros((n, 3, 4)),
            labels=rng.integers(0, 4, n),
            classes=list("abcd"),
        )

    return Roles(**{name: draw(60) for name in FITTED}), draw(12)


def one_point():
    """Every image the same: nothing is near or far."""
    rng = np.random.default_rng(0)

    def draw(n):
        return Evidence(
            embeddings=np.tile([[0.6, 0.8]], (n, 1)),
            prompt_logits=np.tile([[[1.0, 0.0, 0.5]]], (n, 3, 1)),
            labels=rng.integers(0, 3, n),
            classes=list("abc"),
        )

    return Roles(**{name: draw(50) for name in FITTED}), draw(5)


def one_test_image():
    roles, test = ordinary()
    return roles, test[:1]


def few_images():
    world = World().roles(n=12, n_test=3)
    return roles_of(world), world["test"]


CASES = [
    ordinary,
    absent_class,
    absent_from_validation,
    two_classes,
    one_prompt,
    two_prompts,
    all_tied,
    one_point,
    one_test_image,
    few_images,
]


def run(name, roles, test, *, miscoverage=0.1, random_state=0):
    with warnings.catch_warnings():
        # Some cases are made to be warned about; what is tested here is that the work goes on.
        warnings.simplefilter("ignore", CalcodeWarning)
        return METHODS[name].predict(roles, test, miscoverage=miscoverage, random_state=random_state)


def assert_same(first: Prediction, second: Prediction) -> None:
    for entry in fields(Prediction):
        if entry.name == "details":
            continue
        left, right = getattr(first, entry.name), getattr(second, entry.name)
        assert (left is None) == (right is None), entry.name
        if left is not None:
            np.testing.assert_array_equal(left, right, err_msg=entry.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", RUNNABLE)
def test_survives(name, case):
    roles, test = case()
    n, k = len(test), test.n_classes
    prediction = run(name, roles, test)
    assert prediction.sets.shape == (n, k)
    assert prediction.sets.dtype == np.bool_
    assert prediction.top_label.shape == (n,)
    assert ((prediction.top_label >= 0) & (prediction.top_label < k)).all()
    assert prediction.top_probability.shape == (n,)
    assert ((prediction.top_probability >= 1 / k - 1e-9) & (prediction.top_probability <= 1 + 1e-9)).all()
    assert prediction.accepted.shape == (n,)
    if prediction.p_values is not None:
        assert ((prediction.p_values > 0) & (prediction.p_values <= 1)).all()
    for value in prediction.details.values():
        assert isinstance(value, float | int | str)


@pytest.mark.parametrize("name", RUNNABLE)
def test_same_seed_same_answer_and_test_labels_are_never_read(name):
    roles, test = ordinary()
    # Both are made anew, because every Evidence renormalises its rows.
    labelled, unlabelled = (
        Evidence(embeddings=test.embeddings, prompt_logits=test.prompt_logits, labels=labels, classes=test.classes)
        for labels in (test.labels, None)
    )
    assert_same(run(name, roles, labelled), run(name, roles, unlabelled))


@pytest.mark.parametrize("name", [name for name in RUNNABLE if name not in RANDOMISED])
def test_order_of_test_images_does_not_matter(name):
    roles, test = ordinary()
    order = np.random.default_rng(0).permutation(len(test))
    straight, shuffled = run(name, roles, test), run(name, roles, test[order])
    np.testing.assert_array_equal(straight.sets[order], shuffled.sets)
    np.testing.assert_array_equal(straight.top_label[order], shuffled.top_label)


@pytest.mark.parametrize("name", [name for name in RUNNABLE if not METHODS[name].record.transductive])
def test_inductive_methods_judge_an_image_alone_as_in_a_batch(name):
    roles, test = ordinary()
    np.testing.assert_array_equal(run(name, roles, test).sets[:1], run(name, roles, test[:1]).sets)


@pytest.mark.parametrize("name", ["conf-ot", "lata"])
def test_transductive_methods_say_so(name):
    """The threshold, which inductive methods take from calibration alone, moves with the batch."""
    roles, test = ordinary()
    batch, alone = run(name, roles, test), run(name, roles, test[:1])
    assert METHODS[name].record.transductive
    assert METHODS[name].record.single_image
    assert batch.details["threshold"] != alone.details["threshold"]


@pytest.mark.parametrize(
    "name",
    [
        "lac",
        "aps",
        "aps-randomised",
        "raps",
        "saps",
        "mondrian",
        "clustered",
        "local-cp",
        "rlcp",
        "lcp-vlm",
        "cp-rvalue",
        "tacp",
        "stacp",
        "lata",
    ],
)
def test_coverage_under_exchangeability(name):
    """Forty worlds of fresh calibration and test images: mean coverage within what chance allows."""
    world, miscoverage = World(spread=0.9), 0.2
    covered = []
    for seed in range(40):
        drawn = world.roles(n=60, n_test=60, seed=seed)
        sets = run(name, roles_of(drawn), drawn["test"], miscoverage=miscoverage, random_state=seed).sets
        covered.append(sets[np.arange(60), drawn["test"].labels].mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert np.mean(covered) > 1 - miscoverage - 3 * error
    assert np.mean(covered) < 1.0


def test_mondrian_contains_the_absent_class():
    roles, test = absent_class()
    assert run("mondrian", roles, test).sets[:, 2].all()


def test_conf_ot_never_offers_an_absent_class_first():
    roles, test = absent_class()
    assert (run("conf-ot", roles, test).top_label != 2).all()


def test_records_are_complete():
    for name, method in METHODS.items():
        record = method.record
        assert isinstance(record, Record)
        assert record.name == name
        for entry in ("title", "paper", "venue", "assumes", "selects", "differs"):
            assert getattr(record, entry).strip(), (name, entry)
        assert 2000 < record.year < 2030
        assert ("reconstruction" in record.title) == record.reconstruction
    titles = [method.record.title for method in METHODS.values()]
    assert len(set(titles)) == len(titles)


def test_names():
    assert [name for name in METHODS if name not in RUNNABLE] == ["no-semantic-term"]
