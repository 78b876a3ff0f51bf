"""Thousands of damaged files with a right digest: each is refused in one sentence, or is as good as an undamaged one.

`make test` tries a few hundred; `make fuzz CASES=20000` tries more and prints what came of them.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fuzz.victims import Victim, make_victims

from calcode.errors import CalcodeError

CASES = int(os.environ.get("CALCODE_FUZZ_CASES", "330"))
FIRST = int(os.environ.get("CALCODE_FUZZ_SEED", "0"))
LONGEST = 5.0
#: Seconds after which a reader that waits for something is stopped.
WAITED = 60


class Hung(BaseException):
    """Not an Exception: a reader must not take it for a damaged file."""


def hung(number: int, frame: object) -> None:
    raise Hung(f"a file kept its reader waiting for {WAITED} s")


LARGEST = 500e6
NAMES = (
    "home", "home-exact", "home-plain", "site", "site-assured", "site-weighted", "prompts", "prompts-npz", "features",
    "decisions", "decisions-csv", "study", "monitor", "preprocessor",
)  # fmt: skip


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Victim]:
    return {victim.name: victim for victim in make_victims(tmp_path_factory.mktemp("fuzz"))}


def largest_so_far() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def outcome(victim: Victim, path: Path) -> str:
    """Whether a file was refused or read; anything else is raised."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            victim.read(path)
        except CalcodeError:
            return "refused"
    return "read"


@pytest.mark.parametrize(("name", "case"), [("decisions", 50974)])
def test_what_the_fuzzer_found_stays_found(victims: dict[str, Victim], name: str, case: int) -> None:
    """A Parquet file with fewer rows than it says."""
    victim = victims[name]
    damaged = victim.path.with_name(f"found-{victim.path.name}")
    victim.damage(victim.path, damaged, random.Random(f"{name} {case}"))
    assert outcome(victim, damaged) == "refused"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_refused_or_sound(victims: dict[str, Victim], name: str, tmp_path: Path) -> None:
    victim = victims[name]
    assert outcome(victim, victim.path) == "read"
    damaged = victim.path.with_name(f"damaged-{victim.path.name}")
    counts: Counter[str] = Counter()
    before, slowest = largest_so_far(), 0.0
    signal.signal(signal.SIGALRM, hung)
    for case in range(FIRST, FIRST + max(1, CASES // len(NAMES))):
        rng = random.Random(f"{name} {case}")
        victim.damage(victim.path, damaged, rng)
        started = time.process_time()  # a busy machine is no hang
        signal.alarm(WAITED)  # one that waits and does nothing is
        try:
            counts[outcome(victim, damaged)] += 1
        except BaseException as error:
            error.add_note(f"{name}, case {case}: CALCODE_FUZZ_SEED={case}")
            raise
        finally:
            signal.alarm(0)
        slowest = max(slowest, time.process_time() - started)
        assert slowest < LONGEST, f"case {case} took {slowest:.1f} s"
        grown = largest_so_far() - before
        assert grown < LARGEST, f"case {case} took {grown / 1e6:.0f} MB"
    print(f"{name}: {dict(counts)}, slowest {slowest:.2f} s, {grown / 1e6:.0f} MB more")
    assert counts["refused"] > 0
