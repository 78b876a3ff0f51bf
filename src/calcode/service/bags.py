"""Select the cases of a recalibration: the bag that the protocol names, its trainers and its gate (SITE.md S1, S5, S6).

The selection uses no scores and does not depend on who starts the recalibration or when.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from calcode.metrics.wording import counted, short_percent
from calcode.service.alarms import open_alarms
from calcode.service.labels import ReviewedCase, reviewed_cases
from calcode.service.problems import Problem
from calcode.service.protocol import RecalibrationPlan
from calcode.service.sampling import settled_upto
from calcode.service.tables import ALARM, DECISION, EVENT, PROTOCOL, RECALIBRATION, of_kinds


@dataclass(frozen=True, kw_only=True)
class BagPlan:
    """The cases of a recalibration; the selection uses no scores.

    Attributes
    ----------
    bag : str
        Name of the bag: recalibrations of one bag share their monitors.
    look : int
        Number of recalibrations of this bag, including this one.
    due : str
        The entry of the protocol that allows it: "100 cases" or a date.
    after, upto : int
        Records between which its cases were decided.
    cases : list of ReviewedCase
        The drawn cases, in decision order.
    trainers : list of ReviewedCase
        Labelled cases, not drawn, whose choice this bag could not influence; they only train.
    gate : list of int
        Records of representatives that were not drawn; a random sample of all patients.
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
    """Return the bag that the protocol names now.

    Raises
    ------
    Problem
        409 outside the protocol, while an alarm is open, or while too many cases wait for a label.
    """
    after, why = _start(connection, line)
    about = {str(alarm["bag"]) for alarm in open_alarms(connection, line)} - _given_up(connection, line).bags
    if any(_is_bag(name) for name in about):
        # Cases from before and after a change are a random sample of neither.
        raise Problem(
            409,
            "An alarm about the cases of this sample is open: an engineer and a clinician first choose whether the "
            "sample is given up (new_bag) or kept (go_on).",
        )
    made = connection.execute(
        select(RECALIBRATION).where(RECALIBRATION.c.line == line, RECALIBRATION.c.bag == f"bag-{after}")
    ).all()
    due, cases = _due(connection, plan, line, _drawn(connection, line, after=after), after=after, why=why, made=made)
    pending = sum(case.waiting and case.state in ("pending", "disputed") for case in cases)
    if pending > plan.most_pending * len(cases):
        raise Problem(
            409,
            f"{pending} of the {len(cases)} drawn cases wait for a label, at most {short_percent(plan.most_pending)} "
            "may: cases that wait are harder than others. Read them, or say that nobody can tell.",
        )
    upto = cases[-1].seq
    # The coin also chooses this random sample of patients that were not drawn: above the largest probability.
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


class _GivenUp(NamedTuple):
    """The bags that two people gave up on alarms, and the record of the newest such alarm (0 if none)."""

    after: int
    bags: frozenset[str]


def _given_up(connection: Connection, line: str) -> _GivenUp:
    """Return the bags that were given up and where the next bag begins.

    Late labels may raise another alarm about a bag that was given up long ago; closing it does not give up the present
    bag. An alarm about a home model concerns the images themselves, so it always ends the present bag.
    """
    query = (
        select(ALARM.c.bag, ALARM.c.raised_seq)
        .join(EVENT, EVENT.c.subject == ALARM.c.id)
        .where(of_kinds("alarm_closed"), ALARM.c.line == line, ALARM.c.choice == "new_bag")
        .order_by(EVENT.c.seq)
    )
    after, bags = 0, set()
    for bag, raised in connection.execute(query):
        if bag not in bags or not _is_bag(bag):
            after = max(after, int(raised))
        bags.add(str(bag))
    return _GivenUp(after, frozenset(bags))


def _is_bag(reference: str) -> bool:
    """Whether a monitor's reference is a bag of this line and not a model from elsewhere (`bag_of`)."""
    return reference.startswith("bag-")


class _Start(NamedTuple):
    """The record after which a bag begins; `why` explains it to people if no alarm does."""

    after: int
    why: str


def _start(connection: Connection, line: str) -> _Start:
    """Return where the current bag begins: after the alarm that gave up the previous bag, or with the protocol.

    The protocol must set times and seed before the first case since the last look is decided (SITE.md S6). Changing
    them later, with labels in view, begins a new bag, and the cases before it train. Restoring the values in force at
    that case does not begin a new bag: a corrected mistake costs nothing.
    """
    after = _given_up(connection, line).after
    looked = select(func.max(RECALIBRATION.c.upto_seq)).where(
        RECALIBRATION.c.line == line, RECALIBRATION.c.bag == f"bag-{after}"
    )
    fresh = _drawn(connection, line, after=connection.execute(looked).scalar() or after)
    query = select(PROTOCOL).where(PROTOCOL.c.line.in_((line, ""))).order_by(PROTOCOL.c.from_seq.desc())
    plans = [(int(row.from_seq), tomllib.loads(row.text).get("recalibration")) for row in connection.execute(query)]
    if not fresh or not plans:
        return _Start(after, "")
    _, now = plans[0]
    if next((plan for seq, plan in plans if seq < fresh[0].seq), None) == now:
        return _Start(after, "")
    since = [seq for seq, _ in takewhile(lambda entry: entry[1] == now, plans)][-1]
    n = counted(sum(case.seq < since for case in fresh), "new drawn case")
    return _Start(
        since,
        f"The protocol named its times and seed with {n} in view, so a new sample begins with the protocol, and the "
        "cases before it train. ",
    )


def _drawn(connection: Connection, line: str, *, after: int) -> list[ReviewedCase]:
    """Return the drawn cases after a record in decision order, without patients in the model's own data."""
    return [case for case in reviewed_cases(connection, line, since=after) if case.drawn and not case.known]


def _trains(case: ReviewedCase, after: int, upto: int, gate_from: float, of_this_bag: Collection[str]) -> bool:
    """Whether a labelled case may train a bag that did not influence its choice (SITE.md S5).

    Cases chosen before the bag may train it. Cases within it may if they are outside the gate and were chosen by a
    model that never saw the bag.
    """
    if case.state != "labelled" or case.known or case.seq > upto:
        return False
    if case.seq <= after:
        # An old case that a person selects now is chosen with the bag in view.
        return case.why not in ("wish", "label") or (case.labelled_seq or 0) <= after
    return case.use == "train" and not case.drawn and case.model not in of_this_bag and case.u < gate_from


def _due(
    connection: Connection,
    plan: RecalibrationPlan,
    line: str,
    drawn: Sequence[ReviewedCase],
    *,
    after: int,
    why: str,
    made: Sequence[Any],
) -> tuple[str, list[ReviewedCase]]:
    """Return the latest unused time of the protocol that has come, and the drawn cases that it takes.

    A bag is thinned to the smallest probability up to its own last case (SERVICE.md 8), so a later policy never
    changes it.
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
    used = {json.loads(row.report)["due"] for row in made}
    for day in (day.isoformat() for day in plan.at_dates):
        # A date is used only once, however many cases precede it.
        if day <= today and day not in used:
            last = select(func.max(DECISION.c.seq)).join(EVENT, EVENT.c.seq == DECISION.c.seq)
            before = connection.execute(last.where(*period, EVENT.c.at < day)).scalar() or 0
            if settled_upto(connection, line) < before:
                # Starting now would choose another bag than starting an hour later.
                raise Problem(
                    409,
                    f"The protocol names {day}, and visits that began before it are still open: which image stands "
                    "for these patients is not known so far. The service closes them when their time is over; then "
                    "try again.",
                )
            cases = [case for case in drawn if case.seq <= before and case.u < least(before)]
            come.append((len(cases), day, cases))
    largest = max((row.cases for row in made), default=0)
    fresh = [entry for entry in come if entry[0] > largest]
    if not fresh:
        later = [f"{n} drawn cases" for n in sorted(plan.at_cases) if n > len(kept)][:1]
        later += [day.isoformat() for day in sorted(plan.at_dates) if day.isoformat() > today][:1]
        raise Problem(
            409,
            f"{why}The protocol allows no recalibration now. {len(kept)} cases of this sample are drawn and {largest} "
            f"of them were used; the next time is {' or '.join(later) or 'not named'}. To choose the time by looking "
            "would void the promise.",
        )
    _, due, cases = max(fresh, key=lambda entry: entry[:2])
    return due, cases
