"""Work that overlaps with the use of its results: the order stays, errors come where they belong, nothing runs away."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from calcode.engines.local import overlapped
from calcode.kernels import run_blocks


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(overlapped(lambda n: n * n, range(50))) == [n * n for n in range(50)]
    assert list(overlapped(abs, [])) == []
    # Later items may be done first; their turn is still theirs.
    assert list(overlapped(lambda n: time.sleep(0.02 * (n % 3 == 0)) or n, range(12), workers=3)) == list(range(12))


def test_workers_keep_to_one_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a worker blocks run in its own thread; elsewhere they do not."""
    monkeypatch.setattr("calcode.kernels.threads.available_cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")

    def threads_used(_: int) -> set[int]:
        used: set[int] = set()
        run_blocks(lambda rows: used.add(threading.get_ident()), [slice(i, i + 1) for i in range(8)])
        return used | {threading.get_ident()}

    assert all(len(used) == 1 for used in overlapped(threads_used, range(4), workers=2))
    assert len(threads_used(0)) > 1


def test_the_next_item_is_at_work_while_this_one_is_used() -> None:
    """The caller waits for the second result before it asks for it: without overlap, that would never come."""
    began = [threading.Event() for _ in range(3)]

    def work(n: int) -> int:
        began[n].set()
        return n

    for n in overlapped(work, range(3)):
        if n < 2:
            assert began[n + 1].wait(timeout=120)


def test_few_items_are_taken_early() -> None:
    taken: list[int] = []

    def items() -> object:
        for n in range(100):
            taken.append(n)
            yield n

    results = overlapped(lambda n: n, items())  # type: ignore[arg-type]
    for used in range(10):
        assert next(results) == used
        assert len(taken) <= used + 2
    results.close()
    assert len(taken) <= 12


def test_an_error_is_raised_in_its_turn_and_ends_the_work() -> None:
    done: list[int] = []

    def work(n: int) -> int:
        if n == 3:
            raise ValueError("the fourth")
        done.append(n)
        return n

    results = overlapped(work, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(results)
    assert len(done) <= 5


def test_closing_waits_for_the_item_at_work() -> None:
    """What `work` uses may be closed afterwards."""
    began, ended = threading.Event(), threading.Event()

    def work(n: int) -> int:
        if n > 0:
            began.set()
            time.sleep(0.3)
            ended.set()
        return n

    with closing(overlapped(work, range(5))) as results:
        assert next(results) == 0
        assert began.wait(timeout=120)
    assert ended.is_set()
