"""Steps of a long job side by side: the next blocks are read and decided while the last one is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from calcode.kernels.threads import stay_on_this_core

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1
) -> Generator[Result, None, None]:
    """work(item) of every item, in order; as many as there are workers are at work while the caller uses one.

    Every worker is a thread that keeps to one core. With a single one, `work` may keep a state. An error of `work` is
    raised where its result would have come, and no further item is taken. Close the generator before closing what
    `work` uses: that waits for the items still at work.

    Parameters
    ----------
    work : callable
    items : iterable
        Taken when there is room, in the thread of the caller.
    workers : int
        At most one more result than this is held beside the one in use.

    Examples
    --------
    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(
        workers, thread_name_prefix="calcode-ahead", initializer=stay_on_this_core
    ) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
