"""Simulated sites: the loop from the first patient to the promoted model, judged on patients that it never saw."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from service.clinic import Clinic, clinic_site, restore_tested
from service.sites import WORLD
from sqlalchemy import select

from calcode import CalcodeWarning
from calcode.service.alarms import all_alarms, close
from calcode.service.labels import reviewed_cases
from calcode.service.monitoring import embeddings_of
from calcode.service.problems import Problem
from calcode.service.recalibration import recalibrate
from calcode.service.reviews import wish
from calcode.service.service import Service
from calcode.service.tables import DECISION
from calcode.site import SiteModel

DELTA = 0.1
N_BAG = 160
#: Share of patients whose reader cannot tell, and of those whose label comes late: the hardest first.
CANNOT_TELL, LATE = 0.05, 0.05
FALSE_ALARM = 0.05
PROTOCOL = f"""description = "simulated site"
min_shadow_decisions = 20
false_alarm = {FALSE_ALARM}
[recalibration]
at_cases = [{N_BAG}]
miscoverage = {DELTA}
"""


class Outcome(NamedTuple):
    """One simulated site.

    Attributes
    ----------
    coverage : dict of str to float
        Class coverage of the promoted model on accepted new patients, all of them, hard ones too.
    informative : float
    promised : float
        1 - delta, and `stated`: the same times 1 - r, r the unlabelled share.
    stated : float
    labels : dict of str to int
        Labels of each class in the promoted model's bag.
    hard : dict of str to float
        Share of each class that nobody can tell.
    uncorrected : dict of str to float
        The same coverage of a model that took every label that was there at that time, `uncorrected_labels` of them.
    refused_early : bool
        The service refused while too many labels were late.
    alarms : int
        Raised against the promoted model while nothing changed.
    home_alarm : bool
        Raised against the home model at this new site.
    """

    coverage: dict[str, float]
    informative: float
    promised: float
    stated: float
    labels: dict[str, int]
    hard: dict[str, float]
    uncorrected: dict[str, float]
    uncorrected_labels: dict[str, int]
    refused_early: bool
    alarms: int
    home_alarm: bool


def simulate(folder: Path, seed: int, *, biased: bool, n_after: int = 300, n_test: int = 4000) -> Outcome:
    """Play one site.

    Parameters
    ----------
    folder : Path
        Empty.
    seed : int
    biased : bool
        Whatever looks like c0 is read on a doctor's wish, nobody can tell the hardest 5 % and the next 5 % come late;
        else every label comes at once.
    n_after : int
        Patients after the promotion, watched by the monitors.
    n_test : int
        New patients that the promoted model is judged on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    site = clinic_site(folder, sample=0.4, protocol=PROTOCOL)
    (folder / "data" / "secret.key").write_bytes(np.random.default_rng(seed).bytes(32))
    with Service(site.settings) as service:
        clinic = Clinic(service, seed=seed, shift=0.7, blur=1.6)
        hard, late, shares = _limits(clinic) if biased else (0.0, 0.0, dict.fromkeys(WORLD.classes, 0.0))
        while len(clinic.drawn()) < N_BAG:
            ids = clinic.send(64)
            if biased:
                _wish_for(service, [id for id in ids if _looks_like(service, id, "c0")])
            clinic.read(lambda id, label: label if clinic.ease[id] > late else None)
            clinic.cannot_tell([id for id in ids if clinic.ease[id] <= hard])
            service.watch()
        uncorrected = _uncorrected(service)
        refused_early = False
        try:
            report = recalibrate(service, "skin", actor="engineer")
        except Problem:
            refused_early = True
            clinic.read(lambda id, label: label if clinic.ease[id] > hard else None)
            report = recalibrate(service, "skin", actor="engineer")
        home_alarm = _close_alarms(service)
        _promote(service, clinic, report["digest"])
        while n_after > 0:
            clinic.send(50)
            clinic.read(lambda id, label: label if clinic.ease[id] > hard else None)
            service.watch()
            n_after -= 50
        with service.database.reading() as connection:
            raised = [alarm for alarm in all_alarms(connection, "skin") if alarm["bag"] == report["bag"]]
        promoted = service.models["skin"].champion.model
        assert isinstance(promoted, SiteModel)
        rows, labels, _ = Clinic(service, seed=10_000 + seed, shift=0.7, blur=1.6).draw(n_test)
        evidence = service.models["skin"].champion.evidence(rows)
        coverage, informative = _judged(promoted, evidence, labels)
        return Outcome(
            coverage=coverage,
            informative=informative,
            promised=1.0 - DELTA,
            stated=(1.0 - DELTA) * (1.0 - report["unlabelled_share"]),
            labels=promoted.counts_,
            hard=shares,
            uncorrected=_judged(uncorrected, evidence, labels)[0],
            uncorrected_labels=uncorrected.counts_,
            refused_early=refused_early,
            alarms=len(raised),
            home_alarm=home_alarm,
        )


def coverage_by_chance(
    counts: Sequence[int], *, hard: Sequence[float], n_test: int, level: float
) -> tuple[float, float]:
    """The mean coverage of a class over sites that a valid method shows, between the quantiles `level` and 1 - `level`.

    Coverage of a class with n labels, given the bag, is that of Beta(k, n + 1 - k), k = ceil((n + 1)(1 - delta)), for
    rank rules with fixed scores; those of the bag's own fit scatter about as much (SITE.md S10). Of the hard cases,
    which are in no bag, nothing is promised: at worst all are missed, at best none.

    Parameters
    ----------
    counts : sequence of int
        Labels of the class at each site.
    hard : sequence of float
        Share of the class without a label at each site.
    n_test : int
        New patients of the class at each site.
    level : float
    """
    rng = np.random.default_rng(0)
    n = np.array(counts)
    k = np.ceil((n + 1) * (1 - DELTA) - 1e-9)
    given = rng.beta(k, n + 1 - k, size=(20_000, len(n)))
    ends = []
    for hard_covered, side in ((0.0, level), (1.0, 1.0 - level)):
        all_of_them = given * (1 - np.array(hard)) + hard_covered * np.array(hard)
        ends.append(float(np.quantile(rng.binomial(n_test, all_of_them).mean(axis=1) / n_test, side)))
    return ends[0], ends[1]


def _limits(clinic: Clinic) -> tuple[float, float, dict[str, float]]:
    """Ease below which a reader cannot tell, and below which a label comes late; how many of each class are so hard."""
    _, labels, ease = Clinic(clinic.service, seed=99, shift=clinic.shift, blur=clinic.blur).draw(20_000)
    hard, late = np.quantile(ease, [CANNOT_TELL, CANNOT_TELL + LATE])
    shares = {name: float((ease[labels == k] <= hard).mean()) for k, name in enumerate(WORLD.classes)}
    return float(hard), float(late), shares


def _looks_like(service: Service, id: str, name: str) -> bool:
    """Whether a doctor who looks at the image would think of a class: the nearest prompt does."""
    with service.database.reading() as connection:
        seq = connection.execute(select(DECISION.c.seq).where(DECISION.c.id == id)).scalar_one()
        vector = embeddings_of(connection, [seq])[seq]
    evidence = service.models["skin"].champion.evidence(vector[None])
    return WORLD.classes[int(evidence.prompt_logits.mean(axis=1).argmax())] == name


def _wish_for(service: Service, ids: list[str]) -> None:
    def change(transaction: Any) -> None:
        for id in ids:
            wish(transaction, id, actor="doctor", comment="looks malignant")

    service.change(change)


def _uncorrected(service: Service) -> SiteModel:
    """Every label that is there, whoever asked for it and whatever is still missing."""
    champion = service.models["skin"].champion
    with service.database.reading() as connection:
        cases = [case for case in reviewed_cases(connection, "skin") if case.state == "labelled"]
        vectors = embeddings_of(connection, [case.seq for case in cases])
    reviewed = champion.evidence(
        np.stack([vectors[case.seq] for case in cases]),
        groups=[case.decision for case in cases],
        labels=[WORLD.classes.index(str(case.label)) for case in cases],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return SiteModel(champion.model, sampling="consecutive", miscoverage=DELTA).fit(reviewed=reviewed)  # type: ignore[arg-type]


def _close_alarms(service: Service) -> bool:
    with service.database.reading() as connection:
        alarms = [alarm for alarm in all_alarms(connection, "skin") if alarm["closed_by"] is None]
    for alarm in alarms:
        for role in ("engineer", "clinician"):
            service.change(
                lambda t, id=alarm["id"], role=role: close(
                    t, "skin", id, actor=f"a.{role}", roles=[role], why="a new site", then="go_on"
                )
            )
    return bool(alarms)


def _promote(service: Service, clinic: Clinic, digest: str) -> None:
    models = service.models["skin"]
    service.change(lambda t: models.set_shadow(t, digest, actor="engineer", why="as planned"))
    models.follow()
    clinic.send(30)
    service.watch()
    _close_alarms(service)
    restore_tested(service)
    service.change(lambda t: models.propose(t, digest, actor="engineer", why="gates passed"))
    service.change(lambda t: models.approve(t, digest, actor="approver", why="agreed"))
    models.follow()


def _judged(model: SiteModel, evidence: Any, labels: np.ndarray) -> tuple[dict[str, float], float]:
    """Class coverage among accepted patients, and the informative rate of all."""
    decisions = model.decide(evidence)
    covered = decisions.sets[np.arange(len(labels)), labels]
    accepted = np.asarray(decisions.p_audit >= model.deferral_level_)
    size = decisions.released_sets.sum(axis=1)
    shown = {name: float(covered[accepted & (labels == k)].mean()) for k, name in enumerate(WORLD.classes)}
    return shown, float(((size > 0) & (size < len(WORLD.classes))).mean())
