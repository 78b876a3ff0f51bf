"""`calcode inspect`: what a model will do, in plain words."""

from __future__ import annotations

from calcode.cli.options import AsJson, ModelFile
from calcode.cli.running import DEVICE_NOTE, Screen, plain_table


def inspect(model: ModelFile, as_json: AsJson = False) -> None:
    """Show in plain words what a model will do.

    Its audit and how well that works, how local its thresholds are, which classes it protects and why, their
    thresholds, and what it promises.

    Examples
    --------
    calcode inspect model.safetensors
    calcode inspect model.safetensors --json
    """
    import warnings

    from calcode.errors import CalcodeWarning
    from calcode.method.quantiles import smallest_finite_count
    from calcode.metrics.wording import number, percent
    from calcode.report import model_facts as about
    from calcode.site import SiteModel, load_model

    with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        # Infinite thresholds are shown below, with their numbers, so the warning is not needed.
        fitted = load_model(model)
    screen = Screen(as_json)
    screen.say(f"{model.name}: {DEVICE_NOTE}", style="bold")
    if isinstance(fitted, SiteModel):
        from calcode.cli.site_summary import show_site, site_facts

        facts = site_facts(fitted)
        screen.emit("inspect", {"file": str(model), **facts})
        show_site(fitted, facts, screen=screen)
        return
    screen.emit("inspect", {"file": str(model), **about.model_facts(fitted)})
    screen.say(
        f"For every image it gives one of {len(fitted.classes_)} diagnoses ({', '.join(fitted.classes_)}), a set "
        "of them, or defers to a clinician."
    )
    expected = fitted.evidence_format_
    screen.say(
        f"Fitted on images: {about.images_text(fitted)}. Backbone: {expected.backbone or 'not recorded'}; "
        f"embeddings of {expected.dimension} dimensions, {expected.n_prompts} prompts per class. Digest: "
        f"{fitted.digest_[:16]}."
    )
    changed = about.changed_settings(fitted)
    named = ", ".join(f"{key} = {value}" for key, value in changed.items())
    screen.say(f"Settings other than the defaults: {named}." if changed else "Every setting is the default.")
    screen.heading("Which images it defers: the audit")
    screen.say(about.audit_sentence(fitted))
    if fitted.audit_name_ is not None:
        table = plain_table("candidate", "AUROC", "")
        for name, auroc in about.audit_candidates(fitted).items():
            chosen = name == fitted.audit_name_
            table.add_row(name, number(auroc, digits=3), "chosen" if chosen else "", style="bold" if chosen else "")
        screen.say()
        screen.show(table)
    screen.heading("How local its thresholds are: the bandwidth")
    screen.say(f"{about.bandwidth_sentence(fitted)} {about.level_sentence(fitted)}")
    if fitted.bandwidth_trace_:
        table = plain_table("neighbourhood", "h", "infinite thresholds", "held-out coverage", "", words=())
        for trial in fitted.bandwidth_trace_:
            chosen = trial.bandwidth == fitted.bandwidth_
            outcome = "rejected"
            if chosen:
                outcome = "chosen" if trial.accepted else "chosen: none met both bounds"
            shares = (number(share, digits=3) for share in (trial.infinite_share, trial.coverage))
            where = (percent(trial.share, digits=2), f"{trial.bandwidth:.4g}")
            table.add_row(*where, *shares, outcome, style="bold" if chosen else "")
        screen.say()
        screen.show(table)
    screen.heading("Which classes it protects: the guard")
    for sentence in about.guard_sentences(fitted):
        screen.point(sentence)
    heads = ("validation\nimages", "held-out\ncoverage", "calibration\nimages", "protected\nat")
    table = plain_table("class", *heads, "needed", "threshold")
    guards = {guard.name: guard for guard in fitted.guards_}
    for row in fitted.tail_evidence_:
        cells = ["-", "-", "-"]
        if row.name in guards:
            guard = guards[row.name]
            needed = smallest_finite_count(miscoverage=guard.miscoverage)
            cells = [f"{1 - guard.miscoverage:g}", f"{needed}", number(guard.quantile, digits=4)]
        coverage, accepted = number(row.coverage, digits=3) if row.n else "-", fitted.n_accepted_per_class_[row.name]
        strong = "bold" if row.name in guards else ""
        table.add_row(row.name, f"{row.n:,}", coverage, f"{accepted:,}", *cells, style=strong)
    screen.say()
    screen.show(table)
    screen.heading("What is promised, and what is only observed")
    for promise in fitted.promises_:
        screen.point(promise)
