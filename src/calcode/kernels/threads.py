"""Independent blocks on the cores there are: numpy lets go of the interpreter inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


def thread_count() -> int:
    """Cores this process may use, or fewer where OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isdigit() and int(asked) > 0 else cores


#: Callers in several threads take turns. Each uses all cores anyway, and the limit on products holds for the whole
#: process: callers side by side would restore each other's.
_turn = Lock()


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes a millisecond, so it is done once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def run_blocks(work: Callable[[slice], None], blocks: Iterable[slice]) -> None:
    """Call `work` on every block, several at a time; each must write to its own rows only and run no blocks itself.

    Examples
    --------
    >>> squares = [0] * 4
    >>> def work(rows: slice) -> None:
    ...     for i in range(rows.start, rows.stop):
    ...         squares[i] = i * i
    >>> run_blocks(work, [slice(0, 2), slice(2, 4)])
    >>> squares
    [0, 1, 4, 9]
    """
    parts = list(blocks)
    threads = min(thread_count(), len(parts))
    # Two layers of threads would fight for the cores: blocks side by side, each product on one core. A single
    # block keeps to that too, because BLAS threads go on spinning for a while after a product of their own.
    with _turn, _blas().limit(limits=1, user_api="blas"):
        if threads <= 1:
            for part in parts:
                work(part)
            return
        with ThreadPoolExecutor(threads) as pool:
            # Consuming the results hands on the first error.
            for _ in pool.map(work, parts):
                pass
