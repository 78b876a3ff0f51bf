"""What the figures of a cohort say, in sentences that are only written where they are true."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from calcode.method.quantiles import smallest_finite_count
from calcode.metrics import ClassCoverage
from calcode.report.figures import CohortFigures, MethodFigures
from calcode.report.wording import (
    FEW,
    count,
    counted,
    listed,
    number,
    percent,
    percent_estimate,
    short_percent,
)

#: Classes that a sentence names before it only counts the rest.
_NAMED = 4
#: From this share of full sets on, the page says what it means for the reader.
_MANY_FULL = 0.25


def ordinary_sentences(figures: CohortFigures) -> list[str]:
    """What an ordinary conformal predictor covers, and which diseases it silently misses."""
    method = figures.ordinary
    if method is None:
        return []
    if not method.summary.coverage.n:
        return [f"{method.name} gives no answer that could be judged."]
    target = figures.cohort.target
    sentences = [f"{method.name} covers {_coverage_with_cost(method)}."]
    missed = method.classes_clearly_below(target)
    if missed:
        named = _named_classes(
            figures, missed, lambda row: f"in {percent(1 - row.coverage.value)} of {_images(row)}"
        )
        lead = (
            "The average hides that it silently misses" if _reaches(method, target) else "It silently misses"
        )
        sentences.append(
            f"{lead} {named}: there the whole interval lies below the target of {short_percent(target)}."
        )
    else:
        sentences.append(f"None of its classes lies clearly below the target of {short_percent(target)}.")
    empty = method.summary.empty_set_rate.value
    if empty > 0:
        sentences.append(f"{percent(empty)} of its sets are empty, which counts as a miss.")
    return sentences


def calcode_sentences(figures: CohortFigures) -> list[str]:
    """What CALCoDe does about it, and what that costs."""
    method = figures.guarded
    if not method.summary.coverage.n:
        return [_nothing_accepted(figures)]
    sentences = [f"CALCoDe covers {_coverage_with_cost(method)}."]
    sentences += _guard_sentences(figures)
    if figures.ordinary is not None:
        sentences += _rescue_sentences(figures, figures.ordinary)
    return sentences


def shortfall_sentences(figures: CohortFigures) -> list[str]:
    """Where CALCoDe too falls short."""
    sentences = []
    if figures.guarded.summary.coverage.n:
        sentences += _worst_class_sentences(figures)
        sentences += _full_set_sentences(figures)
    sentences += _deferral_sentences(figures)
    sentences += _unknown_sentences(figures)
    return sentences


def _coverage_with_cost(method: MethodFigures) -> str:
    """Coverage, never without set size, full-set rate and deferral."""
    summary = method.summary
    full, deferred = summary.full_set_rate.value, method.summary.deferral.value
    return (
        f"{percent_estimate(summary.coverage)} of {counted(summary.coverage.n, 'accepted image')}, with "
        f"{number(summary.set_size.value)} of {len(summary.classes)} labels per set on average, "
        f"{f'{percent(full)} full sets' if full else 'no full set'} and "
        f"{f'{percent(deferred)} of all images' if deferred else 'no image'} deferred"
    )


def _reaches(method: MethodFigures, target: float) -> bool:
    return method.summary.coverage.high >= target


def _images(row: ClassCoverage) -> str:
    return counted(row.coverage.n, "image")


def _named_classes(
    figures: CohortFigures, rows: Sequence[ClassCoverage], describe: Callable[[ClassCoverage], str]
) -> str:
    words = [f"{figures.cohort.class_title(row.name)} {describe(row)}" for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        words.append(f"{len(rows) - _NAMED} more")
    return listed(words)


def _guard_sentences(figures: CohortFigures) -> list[str]:
    cohort = figures.cohort
    protected = cohort.model.tail_classes_
    if not protected:
        return [_no_guard(figures)]
    sentences = [_guard_effect(figures, name) for name in protected]
    before, after = figures.localized.summary, figures.guarded.summary
    if after.set_size.value > before.set_size.value:
        sentences.append(
            f"The guard's price: sets grow from {number(before.set_size.value)} to {number(after.set_size.value)} "
            f"labels on average, full sets go from {percent(before.full_set_rate.value)} to "
            f"{percent(after.full_set_rate.value)}."
        )
    else:
        sentences.append("The guard adds no label to any accepted set here.")
    return sentences


def _no_guard(figures: CohortFigures) -> str:
    settings = figures.cohort.model.settings_
    if settings.protect == "none":
        return "The guard is switched off, so its sets are the localized sets."
    bound = 1.0 - settings.miscoverage - settings.discovery_margin
    return (
        f"No class is protected, because none fell below {short_percent(bound)} on held-out validation images; "
        "its sets are the localized sets."
    )


def _guard_effect(figures: CohortFigures, name: str) -> str:
    title = figures.cohort.class_title(name)
    before = figures.localized.class_row(name).coverage
    after = figures.guarded.class_row(name).coverage
    if not after.n:
        return f"Protected, but without an accepted image here: {title}."
    images = counted(after.n, "accepted image")
    if after.value == before.value:
        return (
            f"For {title} the guard changes nothing: {percent(after.value)} of {images} with and without it."
        )
    level = 1.0 - next(guard.miscoverage for guard in figures.cohort.model.guards_ if guard.name == name)
    reached = "" if after.value >= level else f", still below its level of {short_percent(level)}"
    return (
        f"Its guard lifts {title} from {percent(before.value)} with the localized sets to "
        f"{percent(after.value)} of {images}{reached}."
    )


def _rescue_sentences(figures: CohortFigures, ordinary: MethodFigures) -> list[str]:
    """What became of the diseases that the ordinary predictor misses."""
    missed = ordinary.classes_clearly_below(figures.cohort.target)
    if not missed:
        return []
    fates = "; ".join(f"{row.name} {_fate(figures.guarded.class_row(row.name))}" for row in missed)
    return [f"What becomes of the diseases that {ordinary.name} misses: {fates}."]


def _fate(row: ClassCoverage) -> str:
    if not row.coverage.n:
        return f"has no accepted image, {percent(row.deferral)} of all are deferred"
    covered = f"{percent(row.coverage.value)} of {count(row.coverage.n)} accepted are covered"
    return f"{covered}, {percent(row.deferral)} of all are deferred"


def _worst_class_sentences(figures: CohortFigures) -> list[str]:
    cohort, summary = figures.cohort, figures.guarded.summary
    if summary.worst_class is None:
        least = counted(cohort.min_images, "image")
        return [f"No class has at least {least} and one accepted, so none can be called the worst."]
    worst = figures.guarded.class_row(summary.worst_class)
    title, target = cohort.class_title(worst.name), short_percent(cohort.target)
    share = f"{percent_estimate(worst.coverage)} of {counted(worst.coverage.n, 'accepted image')}"
    if worst.coverage.value >= cohort.target:
        return [f"No class lies below the target of {target}; the lowest is {title} with {share}."]
    doubt = "" if worst.coverage.high < cohort.target else ", though the interval reaches it"
    sentences = [
        f"Its worst class, {title}, stays below the target of {target}{doubt}: {share}. "
        f"{_why_unprotected(figures, worst.name)}"
    ]
    others = [row for row in figures.guarded.classes_clearly_below(cohort.target) if row.name != worst.name]
    if others:
        named = _named_classes(
            figures, others, lambda row: f"({percent(row.coverage.value)} of {_images(row)})"
        )
        sentences.append(f"Clearly below the target too: {named}.")
    missed = int(figures.missed.sum())
    sentences.append(f"In all, {counted(missed, 'accepted image')} got a set without the true label.")
    return sentences


def _why_unprotected(figures: CohortFigures, name: str) -> str:
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
        f"{count(evidence.n)} were covered, not below the bound of {short_percent(evidence.bound)}."
    )


def _full_set_sentences(figures: CohortFigures) -> list[str]:
    summary = figures.guarded.summary
    if not summary.full_set_rate.value >= _MANY_FULL:
        return []
    return [
        f"{percent(summary.full_set_rate.value)} of its accepted sets hold all {len(summary.classes)} labels: they "
        f"cover the truth and say nothing. An informative answer is given for "
        f"{percent(summary.informative_rate.value)} of all images."
    ]


def _nothing_accepted(figures: CohortFigures) -> str:
    if not figures.guarded.summary.n_in_space:
        return "No image lies in the label space, so coverage is undefined."
    return "CALCoDe accepts no image of the label space: coverage and set size are undefined."


def _deferral_sentences(figures: CohortFigures) -> list[str]:
    model, method = figures.cohort.model, figures.guarded
    level = model.settings_.deferral_level
    sentences = []
    if model.audit_name_ is None:
        sentences.append(
            "There is no audit: images unlike the calibration images are answered like any other."
        )
    elif method.summary.deferral.low > level:
        sentences.append(
            f"It defers {percent_estimate(method.summary.deferral)} of the images, clearly more than the "
            f"{short_percent(level)} that its audit was set to defer among images like those of the gate."
        )
    outside = method.summary.n - method.summary.n_in_space
    if outside:
        rejected = method.method.outcome.deferred[figures.cohort.labels < 0]
        sentences.append(
            f"{counted(outside, 'image')} outside the label space: {percent(float(rejected.mean()))} deferred"
            + ("." if rejected.all() else ", the others got an answer that cannot be right.")
        )
    return sentences


def _unknown_sentences(figures: CohortFigures) -> list[str]:
    """What this cohort cannot tell."""
    cohort, summary = figures.cohort, figures.guarded.summary
    sentences = []
    if summary.absent_classes and summary.coverage.n:
        names = listed([cohort.class_title(name) for name in summary.absent_classes])
        sentences.append(f"Without an accepted image, so nothing is known here about them: {names}.")
    few = [row for row in summary.classwise if 0 < row.coverage.n < FEW]
    if few:
        named = _named_classes(figures, few, lambda row: f"({row.coverage.n})")
        sentences.append(f"Fewer than {FEW} accepted images, too few to judge: {named}.")
    everywhere = [guard for guard in cohort.model.guards_ if math.isinf(guard.quantile)]
    for guard in everywhere:
        needed = smallest_finite_count(miscoverage=guard.miscoverage)
        sentences.append(
            f"In every set, whatever the image: {cohort.class_title(guard.name)}, whose guard has "
            f"{counted(guard.n, 'calibration example')} and would need {needed} for a finite threshold."
        )
    return sentences


def audit_sentence(figures: CohortFigures) -> str:
    """How the audit's p-values compare with the uniform distribution."""
    cohort = figures.cohort
    level = cohort.model.settings_.deferral_level
    low = cohort.decisions.p_audit < level
    share = float(low.mean())
    return (
        f"{percent(share)} of {counted(len(low), 'image')} have a p-value below the deferral level of "
        f"{short_percent(level)}; of images like those of the gate about {short_percent(level)} would."
    )
