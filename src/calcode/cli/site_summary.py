"""Output of the site commands: whom to review, and then the labels, levels and promises of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calcode.cli.running import Screen, plain_table

if TYPE_CHECKING:
    from calcode.site.model import SiteModel


def show_plan(facts: dict[str, Any], *, screen: Screen) -> None:
    """Show how many cases of each class a review will have, and which classes stay in every set anyway."""
    screen.say(f"{facts['cases']:,} cases to review, one image per patient, chosen by {facts['sampling']}.")
    if facts["missing"]:
        having = " with a diagnosis of the model" if facts["sampling"] == "archive" else ""
        screen.say(f"That is {facts['missing']:,} fewer than asked for: there are no more patients{having}.")
    if facts["already_tossed"]:
        screen.say(f"{facts['already_tossed']:,} patients were drawn or passed over before and are not tossed again.")
    table = plain_table("class", "patients", "needed", "planned", "")
    for row in facts["classes"]:
        needed, planned, patients = row["needed"], row["planned"], row["available"]
        if planned is None:
            table.add_row(row["class"], "-", f"{needed}", "-", "as many as come")
        elif planned >= needed:
            table.add_row(row["class"], f"{patients}", f"{needed}", f"{planned}", "")
        else:
            table.add_row(row["class"], f"{patients}", f"{needed}", f"{planned}", "stays in every set", style="yellow")
    screen.show(table)
    if facts["training"]:
        screen.say(f"{facts['training']} further cases train the model and do not calibrate it.")
    screen.say()
    screen.say(
        f"Wrote {facts['output']}. Fill in the column label: a diagnosis, 'other', or 'cannot tell'. {facts['coin']} "
        "holds the secret of the draw: keep it, and keep it to yourself."
    )


def site_facts(site: SiteModel) -> dict[str, Any]:
    """All values that `calcode site fit` and `calcode inspect` print about a site model."""
    from calcode.site.expected import informative_share

    sets = site.leave_one_out()
    return {
        "sampling": site.settings_.sampling,
        "reviewed": len(site.bag_),
        "unlabelled": site.n_unlabelled_,
        "unlabelled_share": site.unlabelled_share_,
        "outside": site.n_outside_,
        "rejected": site.n_rejected_,
        "trainers": site.n_trainers_,
        "counts": site.counts_,
        "levels": site.levels_,
        "in_every_set": list(site.silenced_classes_),
        "expected_set_size": float(sets.sum(axis=1).mean()),
        "expected_informative": informative_share(sets),
        "audit": site.audit_kind_,
        "model_digest": site.digest_,
        "promises": list(site.promises_),
    }


def show_site(site: SiteModel, facts: dict[str, Any], *, screen: Screen) -> None:
    """Show labels, levels and promises of a site model in words."""
    from calcode.metrics.wording import percent

    calibrating = sum(site.calibrating_.values())
    more = facts["reviewed"] - calibrating + facts["trainers"]
    screen.say(
        f"{calibrating:,} reviewed cases calibrate; {more} more train; {facts['unlabelled']} got no "
        f"label ({percent(facts['unlabelled_share'])}), {facts['outside']} are outside the label space, "
        f"{facts['rejected']} were rejected by the audit."
    )
    table = plain_table("class", "labels", "promised", "")
    for name, count in facts["counts"].items():
        silent = name in facts["in_every_set"]
        table.add_row(
            name,
            f"{count}",
            percent(1 - facts["levels"][name]),
            f"in every set: {site.shortage_text(name)}" if silent else "",
            style="yellow" if silent else "",
        )
    screen.show(table)
    screen.say()
    screen.say(
        f"Expected of new cases like these, by leaving each out: {facts['expected_set_size']:.2f} of "
        f"{len(facts['counts'])} diagnoses remain, {percent(facts['expected_informative'], digits=0)} of the answers "
        "are informative."
    )
    screen.heading("What is promised, and for whom")
    for promise in facts["promises"]:
        screen.point(promise)
