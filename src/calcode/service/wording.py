"""Answers, alarms and promises in plain words, the same on pages and in reports."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calcode.errors import CalcodeError
from calcode.method.explain import support_words
from calcode.method.model import Calcode
from calcode.method.singles import SinglesCertificate
from calcode.metrics.wording import counted, listed, percent, sentence_case, short_percent
from calcode.service.models import model_row
from calcode.site import SiteModel
from calcode.site.assured import failure_of_look

if TYPE_CHECKING:
    from calcode.service.service import Service

_WHY = {
    "empty_set": "No diagnosis fits the image well enough.",
    "full_set": "Every diagnosis is still possible.",
    "error": "A technical fault stopped the model.",
    "alarm": "An alarm is open, so that the model does not answer by itself until two people have decided.",
}


_NO_CHECK = "No image is left to a clinician before it is answered."


def answer_in_words(
    action: str,
    reason: str,
    diagnoses: Sequence[str],
    *,
    n_classes: int,
    always: Collection[str] = (),
    audit: str | None = None,
) -> list[str]:
    """Return the answer in words, and why it is not a single diagnosis.

    Parameters
    ----------
    action, reason : str
    diagnoses : sequence of str
        The set, spelled out.
    n_classes : int
        Number of diagnoses that the model knows.
    always : collection of str
        Diagnoses that are in every answer, spelled out: they say nothing about this image.
    audit : str or None
        The diagnostic that defers; None if it is not known.

    Examples
    --------
    >>> answer_in_words("set", "none", ["melanoma", "naevus"], n_classes=5)
    ['2 of 5 diagnoses remain possible: melanoma, naevus.']
    >>> answer_in_words("set", "none", ["melanoma", "naevus"], n_classes=5, always=["melanoma"])
    ['2 of 5 diagnoses remain possible: naevus (and melanoma, which is in every answer).']
    >>> answer_in_words("set", "none", ["melanoma", "naevus"], n_classes=2)
    ['All 2 diagnoses remain possible: the answer rules nothing out.']
    >>> answer_in_words("defer", "low_support", [], n_classes=5, audit="msp")[1]
    'The model is unusually unsure about the image, so an answer could not be trusted.'
    """
    if action == "defer":
        first = "The model gives no answer and leaves this case to a clinician."
    elif len(diagnoses) == n_classes:
        first = f"All {n_classes} diagnoses remain possible: the answer rules nothing out."
    elif set(diagnoses) <= set(always):
        first = f"The model rules out every diagnosis but {possible_in_words(diagnoses, always)}."
    elif len(diagnoses) == 1:
        first = f"The model gives one diagnosis: {diagnoses[0]}."
    else:
        shown = possible_in_words(diagnoses, always)
        first = f"{len(diagnoses)} of {n_classes} diagnoses remain possible: {shown}."
    if reason == "low_support":
        return [first, f"{sentence_case(support_words(audit).deferred)}, so an answer could not be trusted."]
    return [first, *([_WHY[reason]] if reason in _WHY else [])]


def support_in_words(p_audit: float, audit: str | None) -> str:
    """Say how far an image stands out by the measure that defers.

    Parameters
    ----------
    p_audit : float
        p-value of the audit.
    audit : str or None
        Diagnostic of the audit; None if it is not known.

    Examples
    --------
    >>> said, compared = support_in_words(0.033, "msp").split(":")
    >>> said
    'By how sure the model is, the image stands out clearly'
    >>> compared.split(maxsplit=3)[-1]
    'of the comparison images leave it at least as unsure.'
    """
    words = support_words(audit)
    stands = "stands out clearly: only" if p_audit < 0.05 else "stands out a little: only"
    if p_audit >= 0.2:
        stands = "does not stand out:"
    return f"By {words.measure}, the image {stands} {percent(p_audit)} of the comparison images {words.others}."


def audit_of(service: Service, body: Mapping[str, Any]) -> str | None:
    """Return the diagnostic that defers in the model of a recorded decision; None if its file cannot be read."""
    models = service.models.get(body["line"])
    try:
        return None if models is None else models.model(body["model"]).model.audit_name_
    except CalcodeError:
        return None


def possible_in_words(diagnoses: Sequence[str], always: Collection[str]) -> str:
    """Return the diagnoses of an answer as text; those that are in every answer come last and are marked.

    Examples
    --------
    >>> possible_in_words(["melanoma", "naevus", "wart"], ["melanoma"])
    'naevus, wart (and melanoma, which is in every answer)'
    >>> possible_in_words(["melanoma", "naevus"], ["melanoma", "naevus"])
    'melanoma and naevus, which are in every answer'
    """
    kept = [name for name in diagnoses if name in always]
    own = ", ".join(name for name in diagnoses if name not in always)
    if not kept:
        return own
    marked = f"{listed(kept)}, which {'is' if len(kept) == 1 else 'are'} in every answer"
    return f"{own} (and {marked})" if own else marked


def score_and_limit(score: float, limit: float) -> tuple[str, str]:
    """Format a score and its limit with enough digits to show which one is larger.

    Examples
    --------
    >>> score_and_limit(0.95, 0.98), score_and_limit(0.9502, 0.9499), score_and_limit(0.5, 0.5)
    (('0.950', '0.980'), ('0.9502', '0.9499'), ('0.500', '0.500'))
    >>> score_and_limit(0.95, 0.95 - 1e-12)
    ('0.950', 'just below 0.950')
    """
    for digits in range(3, 7):
        shown = f"{score:.{digits}f}", f"{limit:.{digits}f}"
        if shown[0] != shown[1]:
            return shown
    # The score is at its limit: a site model rules out at the limit itself.
    return f"{score:.3f}", f"just below {limit:.3f}" if limit < score else f"{limit:.3f}"


#: What each alarm means to a clinician, and what to look at.
_ALARMS = {
    "M1": (
        "New images look different from those that the model was checked with.",
        "Look at the newest images: is there a new camera, light, crop or kind of patient?",
    ),
    "M2": (
        "Images of {name} look different from before.",
        "Compare the newest cases of {name} with older ones: camera, choice of patients, way of diagnosing.",
    ),
    "M3": (
        "The model leaves out {name} more often than it may.",
        "Do not rely on an answer to include {name}. Look at the newest cases that were missed.",
    ),
}


def alarm_in_words(alarm: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Return what an alarm `says`, what to `look_at`, and its `evidence`, in words.

    Parameters
    ----------
    alarm : mapping
        An alarm from `alarms.all_alarms`: monitor, name, n, e_value, alpha.
    names : mapping of str to str
        Classes spelled out.

    Examples
    --------
    >>> said = alarm_in_words({"monitor": "M3", "name": "mel", "n": 31, "e_value": 3294.4, "alpha": 0.0005},
    ...                       {"mel": "melanoma"})
    >>> print(said["says"])
    The model leaves out melanoma more often than it may.
    >>> print(said["evidence"])
    After 31 read cases of melanoma the evidence was 3,294; an alarm is raised at 2,000.
    """
    name = names.get(alarm["name"], alarm["name"])
    says, look_at = (words.format(name=name) for words in _ALARMS[alarm["monitor"]])
    seen = (
        counted(alarm["n"], "patient") if alarm["monitor"] == "M1" else f"{counted(alarm['n'], 'read case')} of {name}"
    )
    evidence = (
        f"After {seen} the evidence was {alarm['e_value']:,.0f}; an alarm is raised at {1 / alarm['alpha']:,.0f}."
    )
    return {"says": says, "look_at": look_at, "evidence": evidence}


def promises_in_words(service: Service, line: str, digest: str) -> list[str]:
    """Return a model's promises in plain words; `Service.promises` has the exact sentences.

    Parameters
    ----------
    service : Service
    line, digest : str
        A model of this line, also one that answered long ago. If its file can no longer be read, the sentences are
        those of the log.
    """
    models = service.models.get(line)
    if models is not None:
        try:
            model = models.model(digest).model
        except CalcodeError:
            pass
        else:
            names = {name: models.settings.names.get(name, name) for name in models.prompts.classes}
            return _of_home(model, names) if isinstance(model, Calcode) else _of_site(model, names)
    with service.database.reading() as connection:
        row = model_row(connection, line, digest)
    return [] if row is None else list(json.loads(row.promises))


def _of_home(model: Calcode, names: Mapping[str, str]) -> list[str]:
    """Return the promises of a model that was fitted elsewhere (METHOD.md 10)."""
    settings, said = model.settings_, []
    for guard in model.guards_:
        name = names[guard.name]
        if math.isinf(guard.quantile):
            known = "1 known case is" if guard.n == 1 else f"{guard.n:,} known cases are"
            said.append(f"{sentence_case(name)} is in every answer: {known} too few.")
        else:
            said.append(
                f"Of patients with {name}, at least {short_percent(1 - guard.miscoverage)} get an answer that "
                "includes it."
            )
    share = short_percent(1 - settings.miscoverage)
    if settings.level == "loo":
        said.append(
            f"Over all diagnoses, the model aims at answers that include the right diagnosis in {share} of the cases; "
            "this is not promised."
        )
    else:
        said.append(f"Over all diagnoses, the answer includes the right diagnosis in {share} of the cases or more.")
    said.append(
        "All this is for cases that the model answers, and for patients and cameras like those that it was calibrated "
        "with. At another hospital nothing is promised; the monitors watch what happens."
    )
    if settings.binary_utility:
        said.append("A case for which every diagnosis stays possible is left to a clinician.")
    if model.audit_ is None:
        said.append(_NO_CHECK)
    else:
        why = support_words(model.audit_name_).deferred
        at_most = f"At most {short_percent(settings.deferral_level)}" if model.audit_.independent else "Some"
        observed = "" if model.audit_.independent else " How many was observed and is not promised."
        said.append(f"{at_most} of the images like those are left to a clinician because {why}.{observed}")
    return [*said, _of_singles(model.certificate_)]


def _of_site(model: SiteModel, names: Mapping[str, str]) -> list[str]:
    """Return the promises of a model that was calibrated at this site (SITE.md S9 and S10)."""
    silent = {names[name]: model.counts_[name] for name in model.silenced_classes_}
    heard = [name for name in model.counts_ if name not in model.silenced_classes_]
    pooled = [name for name in heard if model.ranking_.pool(model.classes_.index(name))]
    promised = [name for name in heard if name not in pooled]
    sure = ""
    if (assurance := model.settings_.assurance) is not None:
        sure = f" (with {percent(1 - failure_of_look(model.look_, assurance=assurance))} confidence)"
    said = [
        f"Of new patients with {names[name]}, at least {percent(1 - model.levels_[name])} get an answer that includes "
        f"it{sure}. Behind this are {model.counts_[name]:,} read cases."
        for name in promised
    ]
    if silent:
        counts = listed([f"{name} ({n})" for name, n in silent.items()])
        them = "it" if len(silent) == 1 else "them"
        said.append(f"Too few cases were read of {counts}. Every answer includes {them}.")
    if pooled:
        said.append(
            f"Of new patients with {listed([names[name] for name in pooled], last='or')}, taken together and not one "
            f"by one, at least {percent(1 - model.levels_[pooled[0]])} get an answer that includes it. Behind this "
            f"are {sum(model.counts_[name] for name in pooled):,} read cases."
        )
    if model.unlabelled_share_ > 0:
        said.append(
            f"{percent(model.unlabelled_share_)} of the read cases got no diagnosis. The promises are for cases that "
            "get one, and weaker by that share for all cases."
        )
    left = f"An image is left to a clinician if {support_words(model.audit_name_).deferred}, compared with images of"
    checked = {
        "site": f"{left} this site. The promises are for the others.",
        "home": f"{left} the hospital where the model was fitted. That may be a third of them or more; the promises "
        "are for the others.",
        "off": _NO_CHECK,
    }
    said += [
        checked[model.audit_kind_],
        "New patients are patients like those drawn for reading, one image each. Nothing is promised for a single "
        "image, a patient who returns, a group of patients, a camera that was not there, or after the site has "
        "changed. How many diagnoses an answer includes is not promised either.",
    ]
    if model.sharp_:
        said.append("If images change, nothing protects against it but the monitors: look at them before every use.")
    return [*said, _of_singles(model.certificate_)]


def _of_singles(certificate: SinglesCertificate | None) -> str:
    """Return what is known about answers of one diagnosis (SITE.md S17)."""
    if certificate is None:
        return "Answers of one diagnosis alone were not checked separately; nothing more is promised for them."
    checked = f"{certificate.wrong:,} of {certificate.n:,} checked ones were wrong"
    if not certificate.certified:
        return f"Answers of one diagnosis alone are not reliable ({checked}), so a second one is always added."
    return (
        f"At most {short_percent(certificate.risk)} of the answers of one diagnosis alone are wrong, with "
        f"{short_percent(certificate.confidence)} confidence ({checked})."
    )
