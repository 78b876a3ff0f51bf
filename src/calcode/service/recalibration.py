"""A site model from the reviewed cases of a line: which cases, when, and what it promises (SITE.md S1 to S6).

The protocol fixes the time and the seed. Whoever presses the button gets the bag that the protocol names, the first
drawn cases in the order of decisions, whenever it is pressed.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, func, select

from calcode.errors import CalcodeError, CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.signatures import public_text, read_private_key, read_public_key, sign_file
from calcode.service.alarms import open_alarms
from calcode.service.labels import ReviewedCase, reviewed_cases
from calcode.service.line import LineModel
from calcode.service.log import Event, Log, Transaction
from calcode.service.models import Models, latest_protocol
from calcode.service.monitoring import embeddings_of
from calcode.service.problems import Problem
from calcode.service.protocol import RecalibrationPlan, parse_protocol
from calcode.service.tables import ALARM, DECISION, EVENT, PROTOCOL, RECALIBRATION, SHADOW_DECISION
from calcode.site import SiteModel
from calcode.site.audit import MIN_GATE
from calcode.site.expected import informative_share
from calcode.site.levels import labels_needed

if TYPE_CHECKING:
    from calcode.service.service import Service


@dataclass(frozen=True, kw_only=True)
class BagPlan:
    """Which cases a recalibration takes; nothing here depends on a score.

    Attributes
    ----------
    bag : str
        Name of the bag: recalibrations of one bag share their monitors.
    look : int
        How many recalibrations of this bag there are with this one.
    due : str
        The line of the protocol that allows it: "100 cases" or a date.
    after, upto : int
        Records between which its cases were decided.
    cases : list of ReviewedCase
        The drawn cases, in decision order.
    trainers : list of ReviewedCase
        Labelled, not drawn, chosen by what this bag could not influence; they only train.
    gate : list of int
        Records of representatives that were not drawn, a random sample of all patients.
    """

    bag: str
    look: int
    due: str
    after: int
    upto: int
    cases: list[ReviewedCase]
    trainers: list[ReviewedCase]
    gate: list[int]


def plan_bag(connection: Connection, line: str, plan: RecalibrationPlan) -> BagPlan:
    """The bag that the protocol names now.

    Raises
    ------
    Problem
        409 outside the protocol, or while too many of its cases wait for a label.
    """
    given_up = select(func.max(ALARM.c.raised_seq)).where(
        ALARM.c.line == line, ALARM.c.closed_by.is_not(None), ALARM.c.choice == "new_bag"
    )
    after = int(connection.execute(given_up).scalar() or 0)
    if any(alarm["bag"] == f"bag-{after}" for alarm in open_alarms(connection, line)):
        # Cases from before and after a change are no random sample of either.
        raise Problem(
            409,
            "An alarm about this bag is open: an engineer and a clinician first choose whether it is given up "
            "(new_bag) or goes on.",
        )
    reviewed = [case for case in reviewed_cases(connection, line, since=after) if not case.known]
    made = connection.execute(
        select(RECALIBRATION).where(RECALIBRATION.c.line == line, RECALIBRATION.c.bag == f"bag-{after}")
    ).all()
    due, cases = _due(connection, plan, line, [case for case in reviewed if case.drawn], after=after, made=made)
    pending = sum(case.waiting and case.state in ("pending", "disputed") for case in cases)
    if pending > plan.most_pending * len(cases):
        raise Problem(
            409,
            f"{pending} of the {len(cases)} drawn cases wait for a label, at most {plan.most_pending:.0%} may: cases "
            "that wait are harder than others. Read them, or say that nobody can tell.",
        )
    upto = cases[-1].seq
    # A random sample of the patients that were not drawn: the coin itself chooses it, above the largest probability.
    lowest = max(plan.gate_from, *(case.p_sample for case in cases))
    gate = connection.execute(
        select(DECISION.c.seq)
        .where(
            DECISION.c.line == line,
            DECISION.c.seq.between(after + 1, upto),
            DECISION.c.representative.is_(True),
            DECISION.c.in_model.is_(False),
            DECISION.c.known_group.is_(False),
            DECISION.c.u >= lowest,
        )
        .order_by(DECISION.c.seq)
    ).scalars()
    of_this_bag = {row.model for row in made}
    return BagPlan(
        bag=f"bag-{after}",
        look=len(made) + 1,
        due=due,
        after=after,
        upto=upto,
        cases=cases,
        trainers=[case for case in reviewed_cases(connection, line) if _trains(case, after, upto, lowest, of_this_bag)],
        gate=list(gate),
    )


def _trains(case: ReviewedCase, after: int, upto: int, gate_from: float, of_this_bag: Collection[str]) -> bool:
    """Whether a labelled case may train a bag without having been chosen by it (SITE.md S5).

    Whatever was chosen before the bag may. Within it: what a model that never saw the bag chose, outside the gate.
    """
    if case.state != "labelled" or case.known or case.seq > upto:
        return False
    if case.seq <= after:
        # An old case that somebody picks out now is chosen with the bag in view.
        return case.why not in ("wish", "label") or (case.labelled_seq or 0) <= after
    return case.use == "train" and not case.drawn and case.model not in of_this_bag and case.u < gate_from


def _due(
    connection: Connection,
    plan: RecalibrationPlan,
    line: str,
    drawn: Sequence[ReviewedCase],
    *,
    after: int,
    made: Sequence[Any],
) -> tuple[str, list[ReviewedCase]]:
    """The newest time of the protocol that has come and was not used, and the drawn cases that it takes.

    A bag is thinned to the smallest probability up to its own last case (SERVICE.md 8). A policy that comes later
    changes nothing about it, whenever the button is pressed.
    """
    period = (DECISION.c.line == line, DECISION.c.seq > after)
    query = select(func.min(DECISION.c.seq), DECISION.c.p_sample).where(*period).group_by(DECISION.c.p_sample)
    since = [(int(seq), float(p)) for seq, p in connection.execute(query)]

    def least(upto: int) -> float:
        return min((p for seq, p in since if seq <= upto), default=0.0)

    come: list[tuple[int, str, list[ReviewedCase]]] = []
    kept: list[ReviewedCase] = []
    smallest = 1.0
    for case in drawn:
        if least(case.seq) < smallest:
            smallest = least(case.seq)
            kept = [earlier for earlier in kept if earlier.u < smallest]
        if case.u < smallest:
            kept.append(case)
        if len(kept) in plan.at_cases and not any(n == len(kept) for n, _, _ in come):
            come.append((len(kept), f"{len(kept)} cases", list(kept)))
    today = str(connection.execute(select(func.max(EVENT.c.at))).scalar())[:10]
    for day in (day.isoformat() for day in plan.at_dates):
        if day <= today:
            last = select(func.max(DECISION.c.seq)).join(EVENT, EVENT.c.seq == DECISION.c.seq)
            before = connection.execute(last.where(*period, EVENT.c.at < day)).scalar() or 0
            cases = [case for case in drawn if case.seq <= before and case.u < least(before)]
            come.append((len(cases), day, cases))
    largest = max((row.cases for row in made), default=0)
    fresh = [entry for entry in come if entry[0] > largest]
    if not fresh:
        later = [f"{n} drawn cases" for n in sorted(plan.at_cases) if n > len(kept)][:1]
        later += [day.isoformat() for day in sorted(plan.at_dates) if day.isoformat() > today][:1]
        raise Problem(
            409,
            f"The protocol allows no recalibration now: this bag has {len(kept)} drawn cases, {largest} of them used, "
            f"and the next time is {' or '.join(later) or 'not named'}. A time chosen by looking would void the "
            "promise.",
        )
    _, due, cases = max(fresh, key=lambda entry: entry[:2])
    return due, cases


def recalibrate(service: Service, line: str, *, actor: str) -> dict[str, Any]:
    """Make the site model that the protocol names now and keep it as a candidate; the report, with its `digest`.

    Nothing answers differently afterwards: the candidate goes into the shadow, and two accounts promote it.
    """
    report, change = candidate(service.models[line], service.log, actor=actor)
    service.change(change)
    return report


def candidate(models: Models, log: Log, *, actor: str) -> tuple[dict[str, Any], Callable[[Transaction], None]]:
    """The report of the site model that the protocol names now, and the change that records both.

    Killed in between, a file without a record is left, and the next attempt makes the same file again.

    Parameters
    ----------
    models : Models
        Of the line.
    log : Log
    actor : str

    Returns
    -------
    report : dict
    change : callable
    """
    line = models.line
    with log.database.reading() as connection:
        row = latest_protocol(connection, line)
        plan = None if row is None else parse_protocol(row.text, source="protocol").recalibration
        if plan is None:
            raise Problem(409, "The protocol has no [recalibration]: it names times and seed before anything is made.")
        chosen = plan_bag(connection, line, plan)
        # The record since which the protocol has had the [recalibration] that it has now (SITE.md S6).
        query = select(PROTOCOL).where(PROTOCOL.c.line.in_((line, ""))).order_by(PROTOCOL.c.from_seq.desc())
        plans = [(tomllib.loads(row.text).get("recalibration"), int(row.from_seq)) for row in connection.execute(query)]
        if min(seq for _, seq in takewhile(lambda entry: entry[0] == plans[0][0], plans)) > chosen.upto:
            raise Problem(
                409,
                f"The protocol named its times and seed after these {len(chosen.cases)} cases were decided; name a "
                "later time. Times and seeds that are chosen by looking would void the promise.",
            )
        site, report = fit_site(connection, models.home(connection), plan, chosen)
    # In the data folder: the file holds the embeddings of patients.
    with tempfile.TemporaryDirectory(dir=models.folder) as folder:
        path = Path(folder) / "site.safetensors"
        site.save(path)
        _sign(models, path, digest=site.digest_)
        try:
            digest, add = models.add(path, actor=actor)
        except CalcodeError as error:
            raise Problem(409, str(error).replace(str(path), "site model")) from error
    report = {"line": line, "digest": digest, **report}

    def change(transaction: Transaction) -> None:
        # Pressed twice at once, the same bag gives the same model, and the second one is refused here.
        add(transaction)
        body = {"line": line, "report": report}
        transaction.append([Event(kind="recalibration", actor=actor, subject=digest, body=body)])

    return report, change


def fit_site(
    connection: Connection, home: LineModel, plan: RecalibrationPlan, chosen: BagPlan
) -> tuple[SiteModel, dict[str, Any]]:
    """The site model of a bag, and the report that is stored with it.

    Parameters
    ----------
    connection : Connection
    home : LineModel
        A home model; its sums are the prior (SITE.md S2).
    plan : RecalibrationPlan
    chosen : BagPlan
    """
    assert isinstance(home.model, Calcode)
    classes = home.model.classes_
    index = {name: k for k, name in enumerate(classes)}
    seqs = [case.seq for case in (*chosen.cases, *chosen.trainers)] + chosen.gate
    vectors = embeddings_of(connection, seqs)
    # As site models see them when they decide: pseudonyms, empty where a request named no patient.
    named = select(DECISION.c.seq, DECISION.c.group_digest).where(DECISION.c.seq.between(min(seqs), max(seqs)))
    groups = {seq: group or "" for seq, group in connection.execute(named)}

    def unlabelled(rows: Sequence[int], labels: Sequence[int] | None = None) -> Evidence:
        embeddings = np.stack([vectors[seq] for seq in rows])
        return home.evidence(embeddings, groups=[groups[seq] for seq in rows], labels=labels)

    def labelled(reviewed: Sequence[ReviewedCase]) -> Evidence:
        return unlabelled([case.seq for case in reviewed], [index.get(case.label or "", -1) for case in reviewed])

    # A patient whose content was deleted is in no bag; deletion does not look at scores.
    cases = [case for case in chosen.cases if case.seq in vectors]
    trainers = [case for case in chosen.trainers if case.seq in vectors]
    gate = [seq for seq in chosen.gate if seq in vectors]
    site = SiteModel(
        home.model,
        sampling="coin",
        miscoverage=plan.miscoverage,
        rare=plan.rare,
        slack=plan.slack,
        always_protect=plan.always_protect,
        random_state=plan.random_state,
    )
    try:
        with warnings.catch_warnings():
            # Classes with too few labels are in the report.
            warnings.simplefilter("ignore", CalcodeWarning)
            site.fit(
                reviewed=labelled(cases),
                trainers=labelled(trainers) if trainers else None,
                gate=unlabelled(gate) if len(gate) >= MIN_GATE else None,
                look=chosen.look,
                without_label=[case.state not in ("labelled", "outside") for case in cases],
            )
    except CalcodeError as error:
        raise Problem(409, f"These cases make no site model: {error}.") from error
    sets = site.leave_one_out()
    r = site.unlabelled_share_
    report = {
        "bag": chosen.bag,
        "look": chosen.look,
        "due": chosen.due,
        "after": chosen.after,
        "upto": chosen.upto,
        "cases": len(chosen.cases),
        "states": dict(sorted(Counter(case.state for case in chosen.cases).items())),
        "not_blind": sum(case.state == "labelled" and not case.blind for case in cases),
        "deleted": len(chosen.cases) - len(cases),
        "rejected_by_audit": site.n_rejected_,
        "trainers": site.n_trainers_,
        "gate": len(gate) if site.gate_distances_ is not None else 0,
        "audit": site.audit_kind_,
        "home": site.home_digest_,
        "settings": plan.model_dump(mode="json"),
        "classes": [
            {
                "name": name,
                "labels": site.counts_[name],
                "needed": labels_needed(site.settings_.miscoverage[name]),
                "in_every_set": name in site.silenced_classes_,
                "promised": 1.0 - site.levels_[name],
                "promised_with_unlabelled": (1.0 - site.levels_[name]) * (1.0 - r),
            }
            for name in classes
        ],
        "unlabelled_share": r,
        "promises": list(site.promises_),
        "expected_informative": informative_share(sets),
        "expected_set_size": float(sets.sum(axis=1).mean()),
    }
    return site, report


def _sign(models: Models, path: Path, *, digest: str) -> None:
    """Sign with the service's own key where the line takes signed models only."""
    if models.trusted is None:
        return
    key = models.settings.signing_key
    if key is None:
        raise Problem(409, "The line takes signed models only; name a signing_key in the site file, and trust it.")
    private = read_private_key(key)
    public = public_text(private.public_key())
    if public not in {public_text(read_public_key(trusted)) for trusted in models.trusted}:
        raise Problem(409, "The site file does not trust the line's signing_key; add its public key to trusted.")
    sign_file(path, digest=digest, key=private)


def report_of(connection: Connection, line: str, digest: str) -> dict[str, Any] | None:
    """The stored report of a candidate that was made here."""
    query = select(RECALIBRATION.c.report).where(RECALIBRATION.c.line == line, RECALIBRATION.c.model == digest)
    report = connection.execute(query.limit(1)).scalar()
    return None if report is None else dict(json.loads(report))


def shadow_comparison(connection: Connection, line: str, digest: str, *, n_classes: int) -> dict[str, Any]:
    """What a candidate would have changed on the stream that it decided in the shadow.

    Informative are answers with at least one label and not all. Set size and deferral are shown and refuse nobody
    (SITE.md S6).
    """
    query = (
        select(
            DECISION.c.action,
            DECISION.c.released_set,
            SHADOW_DECISION.c.action.label("shadow_action"),
            SHADOW_DECISION.c.released_set.label("shadow_set"),
        )
        .join(SHADOW_DECISION, SHADOW_DECISION.c.decision == DECISION.c.id)
        .where(DECISION.c.line == line, SHADOW_DECISION.c.model == digest)
    )
    rows = connection.execute(query).all()
    return {
        "decisions": len(rows),
        "differ": sum((row.action, row.released_set) != (row.shadow_action, row.shadow_set) for row in rows),
        "champion": _answers([(row.action, row.released_set) for row in rows], n_classes),
        "candidate": _answers([(row.shadow_action, row.shadow_set) for row in rows], n_classes),
    }


def _answers(answers: Sequence[tuple[str, str]], n_classes: int) -> dict[str, float | None]:
    """Rates of answers, with the mean size of the sets that were given; None without any."""
    sizes = [len(json.loads(names)) for action, names in answers if action != "defer"]
    n = len(answers)
    return {
        "informative": None if n == 0 else sum(0 < size < n_classes for size in sizes) / n,
        "deferred": None if n == 0 else (n - len(sizes)) / n,
        "set_size": None if not sizes else sum(sizes) / len(sizes),
    }


def sentences(report: dict[str, Any]) -> list[str]:
    """A report in words, for a terminal; coverage never without the labels behind it."""
    silent = [
        f"{entry['name']} ({entry['labels']} of {entry['needed']})"
        for entry in report["classes"]
        if entry["in_every_set"]
    ]
    promised = [
        f"{entry['name']} {entry['promised']:.3f} ({entry['labels']} labels; with the cases that got none "
        f"{entry['promised_with_unlabelled']:.3f})"
        for entry in report["classes"]
        if not entry["in_every_set"]
    ]
    return [
        f"Candidate {report['digest'][:16]} from {report['cases']} drawn cases ({report['due']}), "
        f"{report['trainers']} others train, {report['gate']} in the site gate, audit {report['audit']}.",
        f"Promised coverage: {'; '.join(promised) or 'of no class'}.",
        f"In every set, for want of labels: {', '.join(silent) or 'no class'}.",
        f"Expected informative rate {report['expected_informative']:.2f}, set size {report['expected_set_size']:.2f} "
        "(each case left out once).",
        "Next: put it into the shadow; then an engineer proposes and an approver approves.",
    ]
