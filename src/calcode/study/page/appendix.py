"""The end of the report: what failed, what was warned of, words, settings, hashes, versions and durations."""

from __future__ import annotations

import json
from collections.abc import Mapping

from calcode.report.wording import count, counted, listed, number
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Heading, Part, Passage, Section, TableView, entries

#: Slowest combinations that are named.
_SLOWEST = 10

_WORDS = (
    (
        "Coverage",
        "share of accepted images of the label space whose set holds the true label; an empty set is a miss.",
    ),
    ("Worst class", "the class with the smallest coverage, among those with enough images."),
    (
        "Set size",
        "labels in the set of an accepted image, on average. A full set holds every label and says nothing.",
    ),
    ("Informative", "share of all images that are accepted with at least one label and not all of them."),
    ("Deferred", "share of all images that go to a clinician instead of getting an answer."),
    ("Accepted", "images that passed the support audit; a method without an audit accepts every image."),
    ("Target met", "combinations of setting and backbone whose coverage is at least the target."),
    ("Observed", "measured on images unlike the calibration images: no theorem promises it elsewhere."),
    ("Reconstruction", "a method without published code, built from its description."),
    ("Reported", "a number that the paper prints; never computed here."),
)


def words_section() -> Section:
    """What the words mean."""
    table = TableView(
        name="words",
        caption="Words as they are used on this page.",
        headings=(Heading("word", numeric=False), Heading("meaning", numeric=False)),
        rows=tuple(entries(word, meaning) for word, meaning in _WORDS),
    )
    return Section(key="words", title="What the words mean", parts=(table,))


def record_section(output: StudyOutput) -> Section:
    """Failures, warnings, inputs, settings, versions and durations."""
    parts: list[Part] = [*_failures(output), *_warnings(output), *_inputs(output), *_settings(output)]
    parts += [_versions(output), *_durations(output)]
    return Section(key="record", title="Record of the run", parts=tuple(parts))


def input_section(output: StudyOutput) -> Section:
    """Inputs and versions alone, for a page that leaves the rest of the record out."""
    return Section(key="inputs", title="Inputs and versions", parts=(*_inputs(output)[1:], _versions(output)))


def _failures(output: StudyOutput) -> list[Part]:
    failures = output.manifest["failures"]
    left_out = output.study["left_out"]
    sentences = []
    if not failures:
        sentences.append(
            f"All {counted(len(output.manifest['combinations']), 'piece')} of work were done; none failed."
        )
    else:
        sentences.append(
            f"{counted(len(failures), 'failure')}: {listed([entry['what'] for entry in failures])}."
        )
    sentences += [f"Backbone {name} was left out: {why}." for name, why in left_out.items()]
    parts: list[Part] = [Passage(heading="Failures", sentences=tuple(sentences))]
    if failures:
        parts.append(
            TableView(
                name="failures",
                caption="What failed, and why.",
                headings=(Heading("what", numeric=False), Heading("error", numeric=False)),
                rows=tuple(entries(entry["what"], entry["error"]) for entry in failures),
            )
        )
    return parts


def _warnings(output: StudyOutput) -> list[Part]:
    found: dict[str, list[str]] = {}
    for entry in output.manifest["combinations"]:
        for warning in entry["warnings"]:
            found.setdefault(warning, []).append(entry["name"])
    if not found:
        return []
    return [
        TableView(
            name="warnings",
            caption="What the methods warned of.",
            headings=(Heading("warning", numeric=False), Heading("where", numeric=False)),
            rows=tuple(entries(warning, ", ".join(names)) for warning, names in found.items()),
            folded=f"{counted(len(found), 'warning')} of the methods",
        )
    ]


def _inputs(output: StudyOutput) -> list[Part]:
    rows = [
        entries(backbone["name"], setting, features["path"].rsplit("/", 1)[-1], features["digest"])
        for backbone in output.study["backbones"]
        for setting, features in backbone["features"].items()
    ]
    return [
        Passage(heading="Inputs"),
        TableView(
            name="inputs",
            caption="Feature files with the SHA-256 of features and prompts; * stands for every setting.",
            headings=(
                Heading("backbone", numeric=False),
                Heading("setting", numeric=False),
                Heading("file", numeric=False),
                Heading("SHA-256", numeric=False),
            ),
            rows=tuple(rows),
        ),
    ]


def _settings(output: StudyOutput) -> list[Part]:
    left_out = {"output", "title", "backbones", "left_out"}
    rows = []
    for name, value in output.study.items():
        if name == "settings":
            rows += [entries(f"setting {entry['name']}", _setting_words(entry)) for entry in value]
        elif name not in left_out:
            rows.append(entries(name, _words(value)))
    return [
        Passage(heading="Settings"),
        TableView(
            name="settings",
            caption="The resolved study.",
            headings=(Heading("key", numeric=False), Heading("value", numeric=False)),
            rows=tuple(rows),
            folded="The resolved study",
        ),
    ]


def _setting_words(entry: Mapping[str, object]) -> str:
    shown = {
        name: value for name, value in entry.items() if name not in ("name", "title", "description") and value
    }
    return "; ".join(f"{name} {_words(value)}" for name, value in shown.items())


def _words(value: object) -> str:
    if isinstance(value, list) and all(isinstance(entry, str | int | float) for entry in value):
        return ", ".join(str(entry) for entry in value) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _versions(output: StudyOutput) -> Passage:
    libraries = ", ".join(f"{name} {version}" for name, version in output.manifest["libraries"].items())
    made = f"calcode {output.manifest['calcode']}, Python {output.manifest['python']}, {libraries}."
    return Passage(heading="Versions", sentences=(made,))


def _durations(output: StudyOutput) -> list[Part]:
    durations = output.manifest["durations"]
    timed = {name: seconds for name, seconds in durations["combinations"].items() if seconds is not None}
    reused = len(durations["combinations"]) - len(timed)
    sentence = (
        f"The last run took {number(durations['total_seconds'], digits=0)} s and did {counted(len(timed), 'piece')} of "
        f"work; {count(reused)} had been finished before or failed."
    )
    slowest = sorted(timed.items(), key=lambda entry: -entry[1])[:_SLOWEST]
    if not slowest:
        return [Passage(sentences=(sentence,))]
    return [
        Passage(sentences=(sentence,)),
        TableView(
            name="durations",
            caption=f"The {len(slowest)} longest pieces of work; manifest.json holds all of them.",
            headings=(Heading("work", numeric=False), Heading("seconds")),
            rows=tuple(
                entries(name.rsplit(".", 1)[0], number(seconds, digits=1)) for name, seconds in slowest
            ),
            folded="The longest pieces of work",
        ),
    ]
