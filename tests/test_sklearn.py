"""The meta-estimator is an edge: what it hands over and hands back, and scikit-learn's own rules."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calcode import Calcode, Decisions, Evidence
from calcode.cohorts.roles import split_roles
from calcode.errors import CalcodeWarning, RoleError, SettingsError
from calcode.sklearn import CalcodeClassifier

ROLES = ("reference", "validation", "gate", "calibration")

few_rows = pytest.mark.filterwarnings("ignore::calcode.errors.CalcodeWarning")


class Recorder(GaussianNB):
    """Naive Bayes that keeps the rows it was trained on."""

    def fit(self, X: Any, y: Any) -> Recorder:
        self.rows_seen_ = np.asarray(X).copy()
        super().fit(X, y)
        return self


class Untrainable(GaussianNB):
    """Naive Bayes that must not be trained."""

    def fit(self, X: Any, y: Any) -> Untrainable:
        raise AssertionError("trained before the arguments were checked")


class SinglePrecision(GaussianNB):
    """Naive Bayes with probabilities in float32, as gradient boosting libraries give them."""

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X).astype(np.float32)


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    """1200 rows of three classes that overlap, so that audits have errors to look at."""
    return make_classification(
        n_samples=1200, n_features=6, n_informative=4, n_classes=3, class_sep=0.8, random_state=0
    )


@pytest.fixture(scope="module")
def new_rows() -> np.ndarray:
    return np.random.default_rng(1).normal(scale=1.5, size=(200, 6))


# ---------------------------------------------------------------------- scikit-learn's own checks


@few_rows
@parametrize_with_checks([CalcodeClassifier(LogisticRegression())])
def test_scikit_learn_checks(estimator: CalcodeClassifier, check: Any) -> None:
    check(estimator)


def test_no_check_is_skipped_or_expected_to_fail() -> None:
    # One check runs only if scipy is told so before it is loaded, hence the process of its own.
    script = (
        "import warnings\n"
        "from sklearn.naive_bayes import GaussianNB\n"
        "from sklearn.utils.estimator_checks import check_estimator\n"
        "from calcode.errors import CalcodeWarning\n"
        "from calcode.sklearn import CalcodeClassifier\n"
        "warnings.simplefilter('error')\n"
        "warnings.simplefilter('ignore', CalcodeWarning)\n"
        "outcomes = check_estimator(CalcodeClassifier(GaussianNB()))\n"
        "print(len(outcomes), *{outcome['status'] for outcome in outcomes})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    n_checks, *statuses = done.stdout.split()
    assert int(n_checks) > 40
    assert statuses == ["passed"]


# ---------------------------------------------------------------------- who sees which rows


def test_an_unfitted_estimator_sees_the_training_part_alone(table: Any) -> None:
    X, y = table
    model = CalcodeClassifier(Recorder()).fit(X, y)
    assert set(model.roles_) == {"train", *ROLES}
    np.testing.assert_array_equal(model.estimator_.rows_seen_, X[model.roles_ == "train"])
    serving = {row.tobytes() for row in X[model.roles_ != "train"]}
    assert serving.isdisjoint({row.tobytes() for row in model.estimator_.rows_seen_})
    assert not hasattr(model.estimator, "rows_seen_")


def test_the_parts_have_the_sizes_asked_for(table: Any) -> None:
    X, y = table
    model = CalcodeClassifier(GaussianNB(), train_size=0.5, sizes=(1, 2, 3, 4)).fit(X, y)
    counts = {role: int((model.roles_ == role).sum()) for role in ("train", *ROLES)}
    assert counts == {"train": 600, "reference": 60, "validation": 120, "gate": 180, "calibration": 240}


def test_a_frozen_estimator_is_not_refitted_and_needs_no_training_part(table: Any) -> None:
    X, y = table
    frozen = FrozenEstimator(Recorder().fit(X[:300], y[:300]))
    means = frozen.estimator.theta_.copy()
    model = CalcodeClassifier(frozen).fit(X[300:], y[300:])
    assert model.estimator_.estimator is frozen.estimator
    np.testing.assert_array_equal(frozen.estimator.theta_, means)
    np.testing.assert_array_equal(frozen.estimator.rows_seen_, X[:300])
    assert set(model.roles_) == set(ROLES)
    np.testing.assert_array_equal(model.predict_proba(X), frozen.predict_proba(X))


@few_rows
def test_a_frozen_estimator_sets_the_label_space(table: Any) -> None:
    X, y = table
    frozen = FrozenEstimator(GaussianNB().fit(X[:300], y[:300]))
    two_classes = y[300:] < 2
    model = CalcodeClassifier(frozen).fit(X[300:][two_classes], y[300:][two_classes])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.calcode_.n_accepted_per_class_["2"] == 0
    with pytest.raises(RoleError, match=r"^y: \[7\] are not among the classes of the frozen estimator"):
        CalcodeClassifier(frozen).fit(X, np.where(y == 2, 7, y))


def test_groups_stay_whole(table: Any) -> None:
    X, y = table
    groups = np.random.default_rng(0).integers(300, size=len(y))
    model = CalcodeClassifier(GaussianNB()).fit(X, y, groups=groups)
    for group in np.unique(groups):
        assert len(set(model.roles_[groups == group])) == 1, group
    # The core was told, too: it would refuse a group that is in another role.
    assert ("calibration", "groups") in model.calcode_.role_hashes_.hashes


@few_rows
def test_a_class_missing_from_training_is_told_and_ranked_last(table: Any) -> None:
    X, y = table
    y = np.where(np.arange(len(y)) == 5, 9, y)
    with pytest.warns(CalcodeWarning, match=r"^train_size: no row of the classes \[9\] is in the training part"):
        model = CalcodeClassifier(GaussianNB(), train_size=0.1).fit(X, y)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), 4)
    assert not probabilities[:, 3].any()
    assert (model.decide(X).scores[:, 3] == 1.0).all()


@pytest.mark.parametrize("random_state", [3, np.random.RandomState(3), None])
def test_the_split_follows_its_seed(table: Any, random_state: Any) -> None:
    X, y = table
    first = CalcodeClassifier(GaussianNB(), random_state=random_state).fit(X, y)
    second = CalcodeClassifier(GaussianNB(), random_state=random_state).fit(X, y)
    assert (first.roles_ == second.roles_).all() == (random_state == 3)


# ---------------------------------------------------------------------- what is handed over and back


def assert_same_decisions(left: Decisions, right: Decisions) -> None:
    assert left.classes == right.classes
    for name in ("action", "reason", "label", "sets", "localized_sets", "top_label"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    np.testing.assert_allclose(left.p_audit, right.p_audit, rtol=0, atol=1e-12)
    np.testing.assert_allclose(left.scores, right.scores, rtol=0, atol=1e-9)


def test_decisions_are_those_of_the_core_called_by_hand(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    names = np.array(["x", "y", "z"])
    roles = split_roles(names[y], sizes=(0.12, 0.15, 0.12, 0.21, 0.4), random_state=4)
    classifier = GaussianNB().fit(X[roles == "test"], y[roles == "test"])
    mean, deviation = X[roles == "reference"].mean(axis=0), X[roles == "reference"].std(axis=0)

    def evidence(rows: np.ndarray, labels: np.ndarray | None = None) -> Evidence:
        standard = np.column_stack([(rows - mean) / deviation, np.full(len(rows), np.sqrt(6))])
        return Evidence(
            embeddings=standard / np.linalg.norm(standard, axis=1, keepdims=True),
            prompt_logits=np.log(np.maximum(classifier.predict_proba(rows), 1e-12))[:, None],
            labels=labels,
            classes=names,
        )

    parts = {role: evidence(X[roles == role], y[roles == role]) for role in ROLES}
    by_hand = Calcode(miscoverage=0.1, level="certified", audit=("distance", "msp", "fused")).fit(**parts)
    model = CalcodeClassifier(GaussianNB(), calcode=Calcode(miscoverage=0.1, level="certified"), random_state=4).fit(
        X, names[y]
    )
    decisions = model.decide(new_rows)
    assert len(np.unique(decisions.action)) == 3, "the rows should call for every action"
    assert_same_decisions(decisions, by_hand.decide(evidence(new_rows)))
    np.testing.assert_array_equal(model.predict_set(new_rows), decisions.sets)


def test_predict_is_the_most_probable_label_deferred_or_not(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    labels = np.array(["nevus", "melanoma", "keratosis"])[y]
    model = CalcodeClassifier(GaussianNB()).fit(X, labels)
    decisions = model.decide(new_rows)
    assert decisions.deferred.any()
    assert model.classes_.tolist() == ["keratosis", "melanoma", "nevus"]
    assert decisions.classes == ("keratosis", "melanoma", "nevus")
    np.testing.assert_array_equal(model.predict(new_rows), model.estimator_.predict(new_rows))
    np.testing.assert_array_equal(model.predict(new_rows), model.classes_[decisions.top_label])
    assert "ignores deferral" in (CalcodeClassifier.predict.__doc__ or "")


def test_a_table_keeps_its_column_names(table: Any) -> None:
    X, y = table
    frame = pd.DataFrame(X, columns=list("abcdef"))
    # Warnings are errors here: "X has feature names" and "X does not have valid feature names" would show.
    model = CalcodeClassifier(GaussianNB()).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.estimator_.feature_names_in_.tolist() == list("abcdef")
    frozen = CalcodeClassifier(FrozenEstimator(GaussianNB().fit(frame[:300], y[:300]))).fit(frame[300:], y[300:])
    with sklearn.config_context(transform_output="pandas"):
        assert len(frozen.decide(frame)) == len(frame)


def test_single_precision_probabilities_do_not_disturb_the_audit(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    p_values = [
        CalcodeClassifier(inner, calcode=Calcode(audit=["fused"])).fit(X, y).decide(new_rows).p_audit
        for inner in (GaussianNB(), SinglePrecision())
    ]
    assert np.abs(p_values[0] - p_values[1]).mean() < 0.02


# ---------------------------------------------------------------------- settings of the core


def test_settings_are_copied_and_silent_diagnostics_left_out(table: Any) -> None:
    X, y = table
    given_settings = Calcode(miscoverage=0.2)
    model = CalcodeClassifier(GaussianNB(), calcode=given_settings).fit(X, y)
    assert model.calcode_.settings_.miscoverage == 0.2
    assert model.calcode_.settings_.audit == ("distance", "msp", "fused")
    assert model.calcode is given_settings
    assert "energy" in given_settings.audit
    assert not hasattr(given_settings, "settings_")


def test_without_an_audit_everything_is_accepted(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    model = CalcodeClassifier(GaussianNB(), calcode=Calcode(audit=None)).fit(X, y)
    assert model.decide(new_rows * 1e6).accepted.all()


def test_class_names_in_settings_are_the_labels_as_text(table: Any) -> None:
    X, y = table
    model = CalcodeClassifier(GaussianNB(), calcode=Calcode(always_protect=["2"])).fit(X, y)
    assert "2" in model.calcode_.tail_classes_


# ---------------------------------------------------------------------- embeddings


def test_neither_units_nor_origins_of_features_matter(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    units, origins = 10.0 ** np.arange(-3, 3), np.linspace(-50, 50, 6)
    inner = make_pipeline(StandardScaler(), GaussianNB())
    plain = CalcodeClassifier(inner).fit(X, y).decide(new_rows)
    moved = CalcodeClassifier(inner).fit(X * units + origins, y).decide(new_rows * units + origins)
    assert_same_decisions(plain, moved)


def test_far_rows_are_deferred_in_whatever_direction_and_zeros_are_rows_like_others(table: Any) -> None:
    X, y = table
    model = CalcodeClassifier(LogisticRegression(), calcode=Calcode(audit=["distance"])).fit(X, y)
    decisions = model.decide(np.vstack([X[:100] * 30, np.zeros((1, 6)), np.full((1, 6), 1e200)]))
    assert decisions.deferred[:100].mean() > 0.95
    assert not decisions.deferred[100]
    assert decisions.deferred[101]


def test_a_transformer_is_fitted_on_the_reference_rows(table: Any) -> None:
    X, y = table
    embed = make_pipeline(PCA(3), Normalizer())
    model = CalcodeClassifier(GaussianNB(), embed=embed).fit(X, y)
    np.testing.assert_allclose(model.embed_[0].mean_, X[model.roles_ == "reference"].mean(axis=0))
    assert model.calcode_.evidence_format_.dimension == 3
    assert not hasattr(embed[0], "mean_")
    frozen = FrozenEstimator(make_pipeline(PCA(2), Normalizer()).fit(X[:50]))
    model = CalcodeClassifier(GaussianNB(), embed=frozen).fit(X, y)
    assert model.embed_ is frozen
    np.testing.assert_allclose(frozen.estimator[0].mean_, X[:50].mean(axis=0))


def letters(texts: Any) -> np.ndarray:
    counts = np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=float) + 0.1
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


class TextClassifier(GaussianNB):
    """A classifier that reads texts, not numbers."""

    def fit(self, X: Any, y: Any) -> TextClassifier:
        super().fit(letters(X), y)
        return self

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(letters(X))


def test_a_callable_embeds_what_is_not_a_table() -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc"), size=8, p=p)) for p in rng.dirichlet(np.ones(3), size=500)]
    y = ["mostly a" if text.count("a") > 3 else "other" for text in texts]
    model = CalcodeClassifier(TextClassifier(), embed=letters).fit(texts, y)
    assert model.embed_ is letters
    reference = letters([text for text, role in zip(texts, model.roles_, strict=True) if role == "reference"])
    np.testing.assert_allclose(model.calcode_.audit_.reference, reference)
    assert model.predict_set(["aaaa", "bbbb"]).shape == (2, 2)
    assert not hasattr(model, "n_features_in_")


# ---------------------------------------------------------------------- the company of other tools


def test_the_last_step_of_a_pipeline(table: Any, new_rows: np.ndarray) -> None:
    X, y = table
    pipeline = make_pipeline(StandardScaler(), CalcodeClassifier(GaussianNB())).fit(X, y)
    direct = CalcodeClassifier(GaussianNB()).fit(pipeline[0].transform(X), y)
    np.testing.assert_array_equal(pipeline.predict(new_rows), direct.predict(pipeline[0].transform(new_rows)))
    assert_same_decisions(
        pipeline[-1].decide(pipeline[:-1].transform(new_rows)), direct.decide(pipeline[0].transform(new_rows))
    )


def test_a_clone_is_unfitted_and_has_equal_settings(table: Any) -> None:
    X, y = table
    model = CalcodeClassifier(GaussianNB(), calcode=Calcode(miscoverage=0.2), train_size=0.3).fit(X, y)
    copy = clone(model)
    assert copy.calcode is not model.calcode
    assert copy.calcode.miscoverage == 0.2
    assert copy.train_size == 0.3
    with pytest.raises(NotFittedError):
        copy.decide(X)


@few_rows
def test_a_grid_over_the_estimator_the_split_and_the_settings(table: Any) -> None:
    X, y = table

    def set_size(model: CalcodeClassifier, rows: Any, labels: Any) -> float:
        return -float(model.predict_set(rows).sum(axis=1).mean())

    grid = {
        "estimator__var_smoothing": [1e-9, 1.0],
        "train_size": [0.3, 0.5],
        "calcode": [Calcode(miscoverage=0.05), Calcode(miscoverage=0.5)],
    }
    search = GridSearchCV(CalcodeClassifier(GaussianNB()), grid, scoring=set_size, cv=2).fit(X, y)
    assert search.best_params_["calcode"].miscoverage == 0.5
    assert search.best_estimator_.calcode_.settings_.miscoverage == 0.5
    assert len(np.unique(search.cv_results_["mean_test_score"])) > 2


def test_groups_reach_the_fits_of_a_search_through_metadata_routing(table: Any) -> None:
    X, y = table
    groups = np.arange(len(y)) // 2
    with sklearn.config_context(enable_metadata_routing=True):
        model = CalcodeClassifier(GaussianNB()).set_fit_request(groups=True)
        search = GridSearchCV(model, {"train_size": [0.4]}, cv=GroupKFold(2)).fit(X, y, groups=groups)
    roles = search.best_estimator_.roles_
    np.testing.assert_array_equal(roles[::2], roles[1::2])


# ---------------------------------------------------------------------- what cannot be, and what must be possible


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": LinearSVC()}, "estimator: LinearSVC has no predict_proba"),
        ({"train_size": 1.0}, "train_size: 1.0 must lie strictly"),
        ({"sizes": (0.5, 0.5)}, "sizes: .* are not four positive numbers"),
        ({"sizes": (0.5, 0.5, -0.1, 0.1)}, "sizes: .* are not four positive numbers"),
        ({"calcode": Calcode(always_protect=["none such"])}, "always_protect: "),
        ({"embed": 3}, "embed: 3 is neither callable nor a transformer"),
        ({"calcode": {"miscoverage": 0.1}}, "calcode: .* is not a Calcode"),
        ({"calcode": Calcode(audit=["energy", "prompt"])}, "calcode: audit=.* says nothing about probabilities"),
        ({"calcode": Calcode(miscoverage=2.0)}, "miscoverage: 2.0"),
    ],
)
def test_wrong_arguments_are_named_before_any_work(table: Any, arguments: dict[str, Any], message: str) -> None:
    X, y = table
    with pytest.raises(SettingsError, match=f"^{message}"):
        CalcodeClassifier(**({"estimator": Untrainable()} | arguments)).fit(X, y)


def test_one_class_or_an_unfitted_frozen_estimator_are_refused(table: Any) -> None:
    X, y = table
    with pytest.raises(RoleError, match="^y: only one class"):
        CalcodeClassifier(GaussianNB()).fit(X, np.zeros(len(y)))
    with pytest.raises(NotFittedError):
        CalcodeClassifier(FrozenEstimator(GaussianNB())).fit(X, y)


@few_rows
@settings(max_examples=60)
@given(
    n=st.integers(10, 60),
    n_classes=st.integers(2, 4),
    step=st.sampled_from([0.0, 1.0, 1e-3]),
    seed=st.integers(0, 1000),
)
def test_small_and_degenerate_tables_can_be_fitted(n: int, n_classes: int, step: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # step 0: every row the same; step 1: many rows equal, many of them zero.
    X = np.round(rng.normal(size=(n, 2))) * step
    y = np.append(rng.integers(n_classes, size=n - 2), [0, 1])
    model = CalcodeClassifier(LogisticRegression(), random_state=seed).fit(X, y)
    decisions = model.decide(X)
    assert (decisions.sets >= decisions.localized_sets).all()
    np.testing.assert_array_equal(model.predict_set(X[:1]), decisions.sets[:1])


def test_covers_rows_it_has_not_seen() -> None:
    X, y = load_iris(return_X_y=True)
    rng = np.random.default_rng(0)
    # Iris is small: jittered copies give enough rows, with the original flower as the group.
    flower = np.repeat(np.arange(150), 12)
    X, y = X[flower] + rng.normal(scale=0.4, size=(1800, 4)), y[flower]
    seen = flower % 3 > 0
    model = CalcodeClassifier(LogisticRegression(max_iter=1000), calcode=Calcode(level="certified"))
    model.fit(X[seen], y[seen], groups=flower[seen])
    summary = model.decide(X[~seen]).summary(y[~seen])
    assert summary.coverage.value > 0.9
    assert summary.full_set_rate.value < 0.5
    assert summary.set_size.value < 2.0
    assert summary.deferral.value < 0.2
