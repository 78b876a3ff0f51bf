"""Steps of a long job side by side: reading the next block while this one is decided and the last one written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
    """work(item) of every item, in order; the next one is at work while the caller uses this one.

    One thread works, so `work` may keep a state. At most two results exist beside the one in use. An error of `work`
    is raised where its result would have come, and no further item is taken. Close the generator before closing what
    `work` uses: that waits for an item still at work.

    Examples
    --------
    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="calcode-ahead") as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
