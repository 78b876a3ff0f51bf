"""The story of the demonstration: why a model is promoted that rules out less, and which photographs are counted."""

from __future__ import annotations

from typing import Any

from calcode.metrics.wording import NBSP
from calcode.service.demo_story import Act, Photograph, Shadowed, Story, promoted_in_words, recalibrated_in_words
from calcode.service.labels import OUTSIDE

NAMES = {"mel": "melanoma", "nv": "nevus"}


def report(cases: int, *, expected: float, silent: set[str]) -> dict[str, Any]:
    classes = [
        {"name": name, "labels": labels, "promised": 0.95, "in_every_set": name in silent}
        for name, labels in (("mel", cases // 20), ("nv", cases // 5), ("bcc", cases // 2))
    ]
    return {"cases": cases, "expected_informative": expected, "classes": classes}


FIRST = report(100, expected=0.93, silent={"mel", "nv"})
SECOND = report(200, expected=0.77, silent={"mel"})


def test_a_second_model_that_expects_to_rule_out_less_is_told_beside_the_first() -> None:
    said = recalibrated_in_words(SECOND, FIRST, names=NAMES).replace(NBSP, " ")
    assert "nevus 95 % (40) and bcc 95 % (100)." in said
    assert "Every answer includes melanoma: too few such cases were read." in said
    assert said.endswith("something out; the model before, made from 100 cases, expected 93 %.")
    assert "the model before" not in recalibrated_in_words(FIRST, None, names=NAMES)


def test_the_promotion_says_what_speaks_for_a_model_that_rules_out_less() -> None:
    shadowed = Shadowed(photographs=144, ruled_out=(0.88, 0.75), judged=127, included=(116, 120))
    said = promoted_in_words(shadowed, FIRST, SECOND, names=NAMES).replace(NBSP, " ")
    assert "ruled something out for 75 % of the 144 photographs of its shadow; the model before: 88 %." in said
    assert "Of the 127 that both answered" in said
    assert "its answers include the true one for 120; the model before: 116." in said
    assert "To rule out less is no reason against a model" in said
    assert (
        "it missed the true diagnosis less often; it promises something for nevus, which the model before put" in said
    )
    assert "it was made from 200 read cases, the model before from 100." in said


def test_nothing_speaks_for_a_model_but_what_is_true() -> None:
    worse = Shadowed(photographs=144, ruled_out=(0.88, 0.75), judged=127, included=(120, 116))
    assert "What speaks for the new one" not in promoted_in_words(worse, None, SECOND, names=NAMES)
    better = Shadowed(photographs=120, ruled_out=(0.09, 0.88), judged=80, included=(79, 77))
    said = promoted_in_words(better, None, FIRST, names=NAMES)
    assert said.endswith("misses nothing. What speaks for the new one: it ruled something out more often.")
    assert "To rule out less" not in said


def test_the_end_counts_every_photograph_since_the_last_promotion_once() -> None:
    labels = ["mel"] * 4 + [OUTSIDE, "nv", "nv", "mel", OUTSIDE, "mel"]
    story = Story(
        service=None,  # type: ignore[arg-type]
        stream=[Photograph({}, label, {}) for label in labels],
        port=0,
        token="",
        pace=1.0,
        say=print,
        acts=[Act(2, "promoted", ""), Act(4, "promoted", "")],
        informative=[False, False, True, True, True, True, False, True, True, False],
        covered=[True, True, True, True, None, True, None, True, None, False],
    )
    said = story.summary.replace(NBSP, " ")
    assert "0 % of the first model, 67 % of the last site model." in said
    assert "decided 6 photographs: 2 show a diagnosis that it does not know, it left 1 of the others to a" in said
    assert "clinician and answered 3. 2 of these 3 answers include the true diagnosis." in said
