"""`calcode inspect`: what a model will do, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calcode.cli.options import AsJson, ModelFile
from calcode.cli.running import Command

if TYPE_CHECKING:
    from calcode.cli.screen import Screen
    from calcode.method.model import Calcode


def inspect(model: ModelFile, as_json: AsJson = False) -> None:
    """Say in plain words what a model will do.

    Its audit and how well that works, how local its thresholds are, which classes it protects and why, their
    thresholds, and what it promises.
    """
    import warnings

    from calcode.cli.describe import model_facts
    from calcode.cli.screen import Screen
    from calcode.errors import CalcodeWarning
    from calcode.method.model import Calcode

    with warnings.catch_warnings():
        # Infinite thresholds are told below, with their numbers.
        warnings.simplefilter("ignore", CalcodeWarning)
        fitted = Calcode.load(model)
    screen = Screen()
    if as_json:
        screen.emit("inspect", {"file": str(model), **model_facts(fitted)})
    else:
        _show(fitted, name=model.name, screen=screen)


COMMAND = Command(
    run=inspect, examples=("calcode inspect model.safetensors", "calcode inspect model.safetensors --json")
)


def _show(model: Calcode, *, name: str, screen: Screen) -> None:
    from calcode.cli.describe import changed_settings, images_text
    from calcode.cli.screen import DEVICE_NOTE

    screen.say(f"{name}: {DEVICE_NOTE}", style="bold")
    screen.say(
        f"For every image it gives one of {len(model.classes_)} diagnoses ({', '.join(model.classes_)}), a set of "
        "them, or defers to a clinician."
    )
    interface = model.evidence_format_
    screen.say(
        f"Fitted on images: {images_text(model)}. Backbone: {interface.backbone or 'not recorded'}; embeddings of "
        f"{interface.dimension} dimensions, {interface.n_prompts} prompts per class. Digest: {model.digest_[:16]}."
    )
    changed = changed_settings(model)
    screen.say(
        "Every setting is the default."
        if not changed
        else f"Settings other than the defaults: {', '.join(f'{key} = {value}' for key, value in changed.items())}."
    )
    _show_audit(model, screen)
    _show_local(model, screen)
    _show_guards(model, screen)
    screen.heading("What is promised, and what is only observed")
    for promise in model.promises_:
        screen.point(promise)


def _show_audit(model: Calcode, screen: Screen) -> None:
    from calcode.cli.describe import audit_sentence, audit_table

    screen.heading("Which images it defers: the audit")
    screen.say(audit_sentence(model))
    if model.audit_name_ is not None:
        screen.say()
        screen.show(audit_table(model))


def _show_local(model: Calcode, screen: Screen) -> None:
    from calcode.cli.describe import level_sentence, trace_table
    from calcode.report.model_section import bandwidth_sentence

    screen.heading("How local its thresholds are: the bandwidth")
    screen.say(f"{bandwidth_sentence(model)} {level_sentence(model)}")
    if model.bandwidth_trace_:
        screen.say()
        screen.show(trace_table(model))


def _show_guards(model: Calcode, screen: Screen) -> None:
    from calcode.cli.describe import class_evidence_table, guard_sentences

    screen.heading("Which classes it protects: the guard")
    if not model.guards_:
        screen.say("No class is protected.")
    for sentence in guard_sentences(model):
        screen.point(sentence)
    screen.say()
    screen.show(class_evidence_table(model))
