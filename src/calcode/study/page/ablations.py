"""Parts of the method taken out one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.wording import counted, listed, percent, signed_points
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import (
    FIGURE_HEADINGS,
    TARGET_HEADINGS,
    cost_words,
    figure_entries,
    target_entries,
)
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Heading, Part, Passage, Section, TableView, entries
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_VARIANT = Heading("variant", numeric=False)


def ablation_section(output: StudyOutput) -> Section | None:
    """Averages, the check against the main comparison, and every setting in a fold."""
    rows = output.chosen("calcode_matched_ablation_means", scope="all")
    if not rows:
        return None
    sentences = (*ablation_sentences(rows), check_sentence(output))
    parts: list[Part] = [
        Passage(sentences=tuple(sentence for sentence in sentences if sentence)),
        TableView(
            name="ablations",
            caption=f"Averages over all settings and {counted(len(output.backbones), 'backbone')}.",
            headings=(_VARIANT, *FIGURE_HEADINGS, *TARGET_HEADINGS),
            rows=tuple(
                entries(words_of(row, "title"), *figure_entries(row), *target_entries(row)) for row in rows
            ),
        ),
    ]
    each = output.rows("calcode_matched_ablation_summary")
    if each:
        parts.append(
            TableView(
                name="ablations-each",
                caption="Every setting and backbone, with the classes that the guard protects.",
                headings=(
                    Heading("setting", numeric=False),
                    Heading("backbone", numeric=False),
                    _VARIANT,
                    *FIGURE_HEADINGS,
                    Heading("protected", numeric=False),
                ),
                rows=tuple(
                    entries(
                        words_of(row, "setting"),
                        words_of(row, "backbone"),
                        words_of(row, "title"),
                        *figure_entries(row),
                        words_of(row, "protected") or "none",
                    )
                    for row in each
                ),
                folded="Every setting and backbone",
                layout="scroll",
            )
        )
    return Section(key="ablations", title="What each part contributes", parts=tuple(parts))


def ablation_sentences(rows: Sequence[Row]) -> list[str]:
    """Which part the worst class depends on, in the order of the loss, and what each part costs."""
    own = next((row for row in rows if row["method"] == COMPLETE), None)
    variants = [row for row in rows if row["method"] != COMPLETE]
    if own is None or not variants:
        return []
    whole = value_of(own, "worst_class_coverage")

    def change(row: Row) -> float:
        return value_of(row, "worst_class_coverage") - whole

    lost = sorted((row for row in variants if change(row) < 0), key=change)
    gained = sorted((row for row in variants if change(row) > 0), key=lambda row: -change(row))
    same = [row for row in variants if change(row) == 0]
    sentences = [
        f"The complete method covers its worst class to {percent(whole)} on average ({cost_words(own)})."
    ]
    for found, verb in ((lost, "Worse for the worst class"), (gained, "Better for it")):
        if found:
            words = [
                f"{words_of(row, 'title')} {signed_points(change(row))} ({cost_words(row)})" for row in found
            ]
            sentences.append(f"{verb}: {listed(words)}.")
    if same:
        sentences.append(f"Without effect on it: {listed([words_of(row, 'title') for row in same])}.")
    return sentences


def check_sentence(output: StudyOutput) -> str:
    """Whether the complete method's rows are those of the main comparison, image by image."""
    rows = output.rows("calcode_matched_ablation_reference_check")
    if not rows:
        return ""
    unequal = [row for row in rows if row["equal"] is not True]
    if unequal:
        places = dict.fromkeys(
            f"{words_of(row, 'setting')} with {words_of(row, 'backbone')}" for row in unequal
        )
        differ = sum(count_of(row, "images_that_differ") for row in rows if row["metric"] == "decisions")
        return (
            f"The complete method differs from its rows in the main comparison on {listed(list(places))} "
            f"({counted(differ, 'image')}): these ablations are not comparable with it."
        )
    images = sum(int(value_of(row, "main_comparison")) for row in rows if row["metric"] == "decisions")
    return (
        f"The complete method's rows equal those of the main comparison in all {len(rows)} checks, "
        f"{counted(images, 'image')} included."
    )
