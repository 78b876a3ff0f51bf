"""Explain one decision of a site model: which diagnoses remain, compared with which reviewed cases (SITE.md S3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from calcode.errors import EvidenceError
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.explain import ClassVerdict, Explanation, answer_sentence, share_nearer, unusual_sentence
from calcode.metrics.wording import percent
from calcode.site.model import SiteModel


def explain_site(evidence: Evidence, *, model: SiteModel, titles: Mapping[str, str] | None = None) -> Explanation:
    """Decide on one image and explain why.

    Parameters
    ----------
    evidence : Evidence
        One image.
    model : SiteModel
    titles : mapping of str to str, optional
        Full names of the classes.
    """
    if len(evidence) != 1:
        raise EvidenceError(f"evidence: {len(evidence)} images, one is explained at a time")
    decisions = model.decide(evidence)
    (decision,) = decisions
    named = {name: (titles or {}).get(name, name) for name in decisions.classes}
    share = None
    if model.audit_ is not None and model.gate_distances_ is not None:
        share = share_nearer(evidence, audit=model.audit_, known=model.gate_distances_)
    why = [f"Cases reviewed at this site: {model.facts_text()}."]
    if decisions.known_group is not None and decisions.known_group[0]:
        why.append("The patient is known to the model: the own reviewed case is left out, and nothing is promised.")
    if decision.action.name == "LABEL":
        why.append(model.singles_sentence)
    (own,), _ = model.known_.find(1, ids=evidence.ids, groups=evidence.groups)
    own_class = model.bag_.labels[own] if own >= 0 else -1
    verdicts = []
    if not decisions.deferred[0]:
        # Every class, the most typical first; classes in every set say nothing about the image and come last.
        (probabilities,) = robust_probabilities(evidence.prompt_logits, trim=model.settings_.trim)
        (scores,) = decisions.scores
        by_rule = [name in model.silenced_classes_ for name in decisions.classes]
        if own_class >= 0 and scores[own_class] == 0.0:
            own_name = decisions.classes[own_class]
            needed = model.ranking_.labels_needed(model.levels_[own_name])
            by_rule[own_class] |= model.calibrating_[own_name] <= needed
        for y in np.lexsort((scores, by_rule)):
            name = decisions.classes[y]
            if name in model.silenced_classes_:
                n = model.counts_[name]
                cases = f"{n} reviewed case{' is' if n == 1 else 's are'}"
                because = f"in every set: {cases} too few to rule it out"
            elif by_rule[y]:
                because = "not ruled out: without the patient's own case too few reviewed cases are left"
            else:
                strange = f"{percent(1 - scores[y])} of the reviewed cases of this class"
                because = f"{strange}, this image among them, look at least as strange"
                if not decisions.sets[0, y]:
                    because += f", not more than {percent(model.levels_[name])}"
            verdicts.append(
                ClassVerdict(
                    name=name,
                    title=named[name],
                    probability=float(probabilities[y]),
                    score=float(scores[y]),
                    threshold=float(decisions.threshold[0, y]),
                    kept_by="reviewed cases" if decisions.sets[0, y] else "",
                    because=because,
                )
            )
    return Explanation(
        id=decision.id,
        action=decision.action.name.lower(),
        reason=decision.reason.name.lower(),
        released=decision.released,
        answer=answer_sentence(decisions, titles=named, always=model.silenced_classes_, audit=model.audit_name_),
        unusual=unusual_sentence(share),
        farther_than=share,
        why=tuple(why),
        p_audit=decision.p_audit,
        deferral_level=model.deferral_level_,
        audit=model.audit_name_,
        verdicts=tuple(verdicts),
        neighbours=(),
        model_digest=decisions.model_digest,
    )
