"""Findings of a cohort as sentences; each sentence is written only if it is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calcode.method.quantiles import smallest_finite_count
from calcode.metrics import ClassCoverage, Summary
from calcode.metrics.wording import FEW, counted, listed, number, percent, percent_estimate, short_percent
from calcode.report.cohort import CohortFigures, MethodFigures
from calcode.report.comparison import differs

#: Number of classes that a sentence names; the others are only counted.
_NAMED = 4
#: Share of full sets from which the page explains what they mean for the reader.
_MANY_FULL = 0.25


# ---------------------------------------------------------------------- all cohorts


def headline(cohorts: Sequence[CohortFigures]) -> list[str]:
    """What the ordinary predictor misses, what CALCoDe changes, and the cost: one sentence each."""
    sentences = []
    compared = [(figures, figures.ordinary) for figures in cohorts if figures.ordinary is not None]
    # Said once, for cases in which "of 5" is not the number of all diagnoses.
    every = [(figures, method) for figures in cohorts for method in figures.methods if method is not figures.localized]
    few = any(len(method.judged) < len(figures.cohort.classes) for figures, method in every)
    judged = f" (of the diagnoses with at least {FEW} answered images)" if few else ""
    allowed = listed(sorted({short_percent(1.0 - figures.cohort.target) for figures in cohorts}))
    misses = f"misses the true diagnosis clearly more often than it should ({allowed})"
    if compared:
        names = listed(sorted({method.name for _, method in compared}))
        below = [len(method.clearly_below(figures.cohort.target)) for figures, method in compared]
        places = [
            (f"{n} of {counted(len(method.judged), 'diagnosis')}" if n else "none") + _on(figures, cohorts)
            for n, (figures, method) in zip(below, compared, strict=True)
        ]
        if any(below):
            sentences.append(f"{names} {misses} for {listed(places)}{judged}. Its answers do not show it.")
            judged = ""
        else:
            sentences.append(f"{names} {misses} for no diagnosis.")
    answering = [figures for figures in cohorts if figures.guarded.summary.coverage.n]
    if answering:
        order = ", in the same order" if len(answering) > 1 and len(compared) == len(answering) else ""
        deferred = [f"{percent(f.guarded.summary.deferral.value)}{'' if order else _on(f, cohorts)}" for f in answering]
        if not any(figures.guarded.clearly_below(figures.cohort.target) for figures in answering):
            judged = ""
        sentences.append(
            f"CALCoDe {calcode_misses(answering, misses)}{judged} among the images it answers, and defers "
            f"{listed(deferred)} of the images to a clinician{order}."
        )
        sizes = listed([f"{number(f.guarded.summary.set_size.value)} of {len(f.cohort.classes)}" for f in answering])
        before = listed([number(f.ordinary.summary.set_size.value) for f in answering if f.ordinary is not None])
        instead = f" instead of {before}" if before else ""
        singles = listed([_record(figures.guarded.summary) for figures in answering])
        sentences.append(
            f"Its sets hold {sizes} labels on average{instead}. Answers that name one diagnosis: {singles}."
        )
    silent = [figures.cohort.name for figures in cohorts if not figures.guarded.summary.coverage.n]
    if silent:
        sentences.append(f"CALCoDe answers no image of {listed(silent)} that could be judged.")
    return sentences


def _on(figures: CohortFigures, cohorts: Sequence[CohortFigures]) -> str:
    return f" on {figures.cohort.name}" if len(cohorts) > 1 else ""


def calcode_misses(cohorts: Sequence[CohortFigures], misses: str) -> str:
    """For how many diagnoses, by name, the same is true of CALCoDe."""
    found = []
    for figures in cohorts:
        below = figures.guarded.clearly_below(figures.cohort.target)
        names = listed([row.name for row in below])
        found.append(f"{len(below)} of {len(figures.guarded.judged)} ({names})" if below else "none")
    if set(found) == {"none"}:
        return f"{misses} for no diagnosis"
    verb = "does so" if any(figures.ordinary is not None for figures in cohorts) else misses
    return f"{verb} for {listed(found)}"


def _record(summary: Summary) -> str:
    """Number of single answers, and how many are right."""
    singles = summary.singles
    return f"{singles.n:,} ({singles.right:,} right)" if singles.n else "none"


# ---------------------------------------------------------------------- one cohort


def ordinary_sentences(figures: CohortFigures) -> list[str]:
    """What an ordinary conformal predictor covers, and which diagnoses it misses unnoticed."""
    method = figures.ordinary
    if method is None:
        return []
    if not method.summary.coverage.n:
        return [f"{method.name} gives no answer that could be judged."]
    target = figures.cohort.target
    sentences = _coverage_with_cost(method)
    missed = method.clearly_below(target)
    if missed:
        named = _named_classes(figures, missed, lambda row: f" in {percent(1 - row.coverage.value)} of {_images(row)}")
        reached = method.summary.coverage.high >= target
        lead = "The average hides what it misses" if reached else "What it misses most"
        sentences.append(
            f"{lead}: {named}. For each of them the whole interval lies below the target of {short_percent(target)}."
        )
    else:
        sentences.append(f"No class lies clearly below the target of {short_percent(target)}.")
    empty = method.summary.empty_set_rate.value
    if empty > 0:
        sentences.append(f"{percent(empty)} of its sets are empty; each counts as a miss.")
    return sentences


def calcode_sentences(figures: CohortFigures) -> list[str]:
    """What CALCoDe changes, and what that costs."""
    summary = figures.guarded.summary
    if not summary.n_in_space:
        return ["No image lies in the label space, so coverage is undefined."]
    if not summary.coverage.n:
        return ["CALCoDe answers no image of the label space: coverage and set size are undefined."]
    sentences = _coverage_with_cost(figures.guarded)
    if differs(summary):
        sentences.append(
            f"Of the {counted(summary.audit_coverage.n, 'image')} that the audit accepts, answered or not, "
            f"{percent_estimate(summary.audit_coverage)} are covered: the promises speak of these."
        )
    sentences += guard_sentences(figures)
    ordinary = figures.ordinary
    missed = () if ordinary is None else ordinary.clearly_below(figures.cohort.target)
    if ordinary is not None and missed:
        fates = []
        for name in (row.name for row in missed):
            row, there = figures.guarded.class_row(name).coverage, figures.ordinary_there
            fate = "(all deferred)"
            if row.n and there is not None:
                same = percent(there.class_row(name).coverage.value)
                fate = f"{percent(row.value)} against {same} of the same {row.n:,}"
            fates.append(f"{name} {fate}")
        sentences.append(f"The diagnoses that {ordinary.name} misses, where CALCoDe answers: {listed(fates)}.")
    return sentences


def shortfall_sentences(figures: CohortFigures) -> list[str]:
    """Where CALCoDe falls short, and what this cohort cannot show."""
    cohort, method, summary = figures.cohort, figures.guarded, figures.guarded.summary
    model = cohort.model
    sentences = []
    if summary.coverage.n:
        sentences += worst_class_sentences(figures)
        if summary.full_set_rate.value >= _MANY_FULL:
            sentences.append(
                f"{percent(summary.full_set_rate.value)} of its sets hold all {len(summary.classes)} labels: "
                f"they cover the truth and say nothing. {percent(summary.informative_rate.value)} of all images get an "
                "answer that narrows the diagnosis down."
            )
    level = model.settings_.deferral_level
    if model.audit_name_ is None:
        sentences.append("There is no audit: images unlike the calibration images are answered like any other.")
    elif summary.deferral.low > level:
        sentences.append(
            f"It defers {percent_estimate(summary.deferral)} of the images, clearly more than the "
            f"{short_percent(level)} that its audit was set to defer among images like those of the gate."
        )
    n_outside = summary.n - summary.n_in_space
    if n_outside:
        rejected = method.outcome.deferred[cohort.labels < 0]
        sentences.append(
            f"{counted(n_outside, 'image')} outside the label space: {percent(float(rejected.mean()))} deferred"
            + ("." if rejected.all() else "; the others got an answer that cannot be right.")
        )
    if summary.absent_classes and summary.coverage.n:
        names = listed([cohort.class_title(name) for name in summary.absent_classes])
        sentences.append(f"No answered image, so nothing is known here about {names}.")
    few = [row for row in summary.classwise if 0 < row.coverage.n < FEW]
    if few:
        named = _named_classes(figures, few, lambda row: f" ({row.coverage.n})")
        sentences.append(f"Fewer than {FEW} answered images, too few to judge: {named}.")
    # One sentence for all classes that are in every set because of an infinite threshold.
    everywhere = cohort.decisions.in_every_set
    if everywhere:
        needed = {guard.name: smallest_finite_count(miscoverage=guard.miscoverage) for guard in model.guards_}
        named = listed([f"{cohort.class_title(name)} ({_calibration(n)})" for name, n in everywhere.items()])
        enough = max((needed[name] for name in everywhere if name in needed), default=0)
        remedy = f"; a threshold of its own needs {enough}" if enough else ""
        sentences.append(f"In every set, whatever the image: {named}{remedy}. Coverage of 100 % says nothing there.")
    return sentences


def _calibration(n: int) -> str:
    return counted(n, "calibration image")


def _coverage_with_cost(method: MethodFigures) -> list[str]:
    """Coverage together with set size, full-set rate, deferral and single answers."""
    summary = method.summary
    full, deferred = summary.full_set_rate.value, summary.deferral.value
    return [
        f"{method.name} covers {percent_estimate(summary.coverage)} of "
        f"{counted(summary.coverage.n, 'answered image')}, with {number(summary.set_size.value)} of "
        f"{len(summary.classes)} labels per set on average, "
        f"{f'{percent(full)} full sets' if full else 'no full set'} and "
        f"{f'{percent(deferred)} of all images' if deferred else 'no image'} deferred.",
        summary.singles.sentence,
    ]


def _images(row: ClassCoverage) -> str:
    return counted(row.coverage.n, "image")


def _named_classes(
    figures: CohortFigures, rows: Sequence[ClassCoverage], describe: Callable[[ClassCoverage], str]
) -> str:
    words = [f"{figures.cohort.class_title(row.name)}{describe(row)}" for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        words.append(f"{len(rows) - _NAMED} more")
    return listed(words)


def guard_sentences(figures: CohortFigures) -> list[str]:
    """What the guard changes for each protected class, and its cost."""
    model = figures.cohort.model
    if not model.tail_classes_:
        # Without protected classes CALCoDe is the localized rule.
        settings, same = model.settings_, "CALCoDe and the localized rule are the same here"
        if settings.protect == "none":
            return [f"The guard is switched off, so {same}."]
        bound = short_percent(1.0 - settings.miscoverage - settings.discovery_margin)
        return [f"No class fell below {bound} on held-out validation images, so none is protected, and {same}."]
    sentences = [guard_effect(figures, name) for name in model.tail_classes_]
    before, after = figures.localized.summary, figures.guarded.summary
    if after.set_size.value > before.set_size.value:
        sentences.append(
            f"The price of the guard: sets grow from {number(before.set_size.value)} to "
            f"{number(after.set_size.value)} labels on average, full sets go from "
            f"{percent(before.full_set_rate.value)} to {percent(after.full_set_rate.value)}, and single answers from "
            f"{_record(before)} to {_record(after)}."
        )
    else:
        sentences.append("The guard adds no label to any answer here.")
    return sentences


def guard_effect(figures: CohortFigures, name: str) -> str:
    """Coverage of a protected class without and with its guard."""
    title = figures.cohort.class_title(name)
    before = figures.localized.class_row(name).coverage
    row = figures.guarded.class_row(name)
    after = row.coverage
    if not after.n:
        return f"Protected, but without an answered image here: {title}."
    images = counted(after.n, "answered image")
    if row.in_every_set is not None:
        return (
            f"{title} is in every set ({_calibration(row.in_every_set)}), so all of {images} are covered; the "
            f"localized sets cover {percent(before.value)}."
        )
    if after.value == before.value:
        return f"For {title} the guard changes nothing: {percent(after.value)} of {images} with and without it."
    level = 1.0 - next(guard.miscoverage for guard in figures.cohort.model.guards_ if guard.name == name)
    reached = "" if after.value >= level else f", still below its level of {short_percent(level)}"
    return (
        f"The guard lifts {title} from {percent(before.value)} with the localized sets to "
        f"{percent(after.value)} of {images}{reached}."
    )


def worst_class_sentences(figures: CohortFigures) -> list[str]:
    """CALCoDe's worst class, other classes clearly below the target, and all misses."""
    cohort, summary = figures.cohort, figures.guarded.summary
    if summary.worst_class is None:
        return []
    worst = summary.worst_class_coverage
    title, target = cohort.class_title(summary.worst_class), short_percent(cohort.target)
    share = f"{percent_estimate(worst)} of {counted(worst.n, 'answered image')}"
    if worst.value >= cohort.target:
        return [f"No class lies below the target of {target}; the lowest is {title} with {share}."]
    doubt = ", though its interval, wider for the worst of several, reaches it" if worst.high >= cohort.target else ""
    sentences = [
        f"Its worst class, {title}, stays below the target of {target}{doubt}: {share}. "
        f"{why_unprotected(figures, summary.worst_class)}"
    ]
    others = [row for row in figures.guarded.clearly_below(cohort.target) if row.name != summary.worst_class]
    if others:
        named = _named_classes(figures, others, lambda row: f" ({percent(row.coverage.value)} of {_images(row)})")
        sentences.append(f"Also clearly below the target: {named}.")
    missed = int(figures.missed.sum())
    sentences.append(f"In all, {counted(missed, 'answered image')} got a set without the true label.")
    return sentences


def why_unprotected(figures: CohortFigures, name: str) -> str:
    """What validation showed for a class that is missed in this cohort."""
    model = figures.cohort.model
    if name in model.tail_classes_:
        return "It is protected all the same."
    if model.settings_.protect == "none":
        return "It is not protected: the guard is switched off."
    evidence = model.tail_evidence_[model.classes_.index(name)]
    if not evidence.n:
        return "It is not protected: no accepted validation image showed it."
    return (
        f"It is not protected: on held-out validation images {percent(evidence.coverage)} of "
        f"{evidence.n:,} were covered, not below the bound of {short_percent(evidence.bound)}."
    )
