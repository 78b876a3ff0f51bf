"""Make a site model from the reviewed cases of a line, and report its promises (SITE.md S2 to S6).

The protocol fixes time, seed and settings before anything is made; `bags` selects the cases.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, select

from calcode.errors import CalcodeError, CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.signatures import public_text, read_private_key, read_public_key, sign_file
from calcode.service.bags import BagPlan, plan_bag
from calcode.service.labels import ReviewedCase
from calcode.service.line import LineModel
from calcode.service.log import Event, Log, Transaction
from calcode.service.models import Models, latest_protocol, model_row, room_for_model
from calcode.service.monitoring import embeddings_of
from calcode.service.problems import Problem
from calcode.service.protocol import RecalibrationPlan, parse_protocol
from calcode.service.tables import DECISION, RECALIBRATION, SHADOW_DECISION
from calcode.site import SiteModel
from calcode.site.audit import MIN_GATE
from calcode.site.expected import informative_share
from calcode.site.levels import labels_needed

if TYPE_CHECKING:
    from calcode.service.service import Service


def recalibrate(service: Service, line: str, *, actor: str) -> dict[str, Any]:
    """Make the site model that the protocol names now and keep it as a candidate; return its report with its `digest`.

    This changes no answer: the candidate goes into the shadow later, and two accounts promote it.
    """
    report, change = candidate(service.models[line], service.log, actor=actor)
    service.change(change)
    return report


def candidate(models: Models, log: Log, *, actor: str) -> tuple[dict[str, Any], Callable[[Transaction], None]]:
    """Make the site model that the protocol names now; return its report and the change that records both.

    If the process is killed before the change, a file without a record is left; the next attempt makes it again.

    Parameters
    ----------
    models : Models
        Models of the line.
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
        site, report = fit_site(connection, models.home(connection), plan, chosen)
    # Made in the data folder, because the file holds the embeddings of patients.
    with room_for_model(), tempfile.TemporaryDirectory(dir=models.folder) as folder:
        path = Path(folder) / "site.safetensors"
        site.save(path)
        if models.trusted is not None:
            # The line accepts only signed models, so the model is signed with the line's own key.
            key = models.settings.signing_key
            if key is None:
                raise Problem(
                    409, "The line takes signed models only; name a signing_key in the site file, and trust it."
                )
            private = read_private_key(key)
            trusted = {public_text(read_public_key(own)) for own in models.trusted}
            if public_text(private.public_key()) not in trusted:
                raise Problem(
                    409, "The site file does not trust the line's signing_key; add its public key to trusted."
                )
            sign_file(path, digest=site.digest_, key=private)
        try:
            digest, add = models.add(path, actor=actor)
        except CalcodeError as error:
            raise Problem(409, str(error).replace(str(path), "site model")) from error
    report = {"line": line, "digest": digest, **report}

    def change(transaction: Transaction) -> None:
        # Two requests at once make the same model from the same bag; the second one is refused.
        if model_row(transaction.connection, line, digest) is not None:
            raise Problem(409, "This model was made before.")
        add(transaction)
        body = {"line": line, "report": report}
        transaction.append([Event(kind="recalibration", actor=actor, subject=digest, body=body)])

    return report, change


def fit_site(
    connection: Connection, home: LineModel, plan: RecalibrationPlan, chosen: BagPlan
) -> tuple[SiteModel, dict[str, Any]]:
    """Fit the site model of a bag; return it with the report that is stored with it.

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
    # Pseudonyms, because site models decide with them; empty if a request named no patient.
    named = select(DECISION.c.seq, DECISION.c.group_digest).where(DECISION.c.seq.between(min(seqs), max(seqs)))
    groups = {seq: group or "" for seq, group in connection.execute(named)}

    def unlabelled(rows: Sequence[int], labels: Sequence[int] | None = None) -> Evidence:
        embeddings = np.stack([vectors[seq] for seq in rows])
        return home.evidence(embeddings, groups=[groups[seq] for seq in rows], labels=labels)

    def labelled(reviewed: Sequence[ReviewedCase]) -> Evidence:
        return unlabelled([case.seq for case in reviewed], [index.get(case.label or "", -1) for case in reviewed])

    # Cases whose content was deleted are left out. This does not bias the bag: deletion does not look at scores.
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
            # No warnings about classes with too few labels: they are in the report.
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


def report_of(connection: Connection, line: str, digest: str) -> dict[str, Any] | None:
    """Return the stored report of a candidate; None if it was not made here."""
    query = select(RECALIBRATION.c.report).where(RECALIBRATION.c.line == line, RECALIBRATION.c.model == digest)
    report = connection.execute(query.limit(1)).scalar()
    return None if report is None else dict(json.loads(report))


def shadow_comparison(connection: Connection, line: str, digest: str, *, n_classes: int) -> dict[str, Any]:
    """Return what a candidate would have changed on the stream that it decided in the shadow.

    An answer is informative if it has at least one label but not all. Set size and deferral are shown but are no gates
    (SITE.md S6).
    """
    rows = shadowed_answers(connection, line, digest)
    return {
        "decisions": len(rows),
        "differ": sum((row.action, row.released_set) != (row.shadow_action, row.shadow_set) for row in rows),
        "champion": _answers([(row.action, row.released_set) for row in rows], n_classes),
        "candidate": _answers([(row.shadow_action, row.shadow_set) for row in rows], n_classes),
    }


def shadowed_answers(connection: Connection, line: str, digest: str) -> Sequence[Any]:
    """Return the answers given while a model decided in the shadow, each with the answer of that model."""
    query = (
        select(
            DECISION.c.id,
            DECISION.c.action,
            DECISION.c.released_set,
            SHADOW_DECISION.c.action.label("shadow_action"),
            SHADOW_DECISION.c.released_set.label("shadow_set"),
        )
        .join(SHADOW_DECISION, SHADOW_DECISION.c.decision == DECISION.c.id)
        .where(DECISION.c.line == line, SHADOW_DECISION.c.model == digest)
    )
    return connection.execute(query).all()


def _answers(answers: Sequence[tuple[str, str]], n_classes: int) -> dict[str, float | None]:
    """Return rates of answers and the mean size of the sets given; None if there are none."""
    sizes = [len(json.loads(names)) for action, names in answers if action != "defer"]
    n = len(answers)
    return {
        "informative": None if n == 0 else sum(0 < size < n_classes for size in sizes) / n,
        "deferred": None if n == 0 else (n - len(sizes)) / n,
        "set_size": None if not sizes else sum(sizes) / len(sizes),
    }


def sentences(report: dict[str, Any]) -> list[str]:
    """Return a report in sentences for a terminal; coverage is always shown with the labels behind it."""
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
        f"In every set because they have too few labels: {', '.join(silent) or 'no class'}.",
        f"Expected informative rate {report['expected_informative']:.2f}, set size {report['expected_set_size']:.2f} "
        "(each case left out once).",
        "Next: put it into the shadow; then an engineer proposes and an approver approves.",
    ]
