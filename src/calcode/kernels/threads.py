"""Run independent blocks on all available cores: numpy releases the GIL inside its loops."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

#: Values in one block of a distance matrix: 4 MiB of float64, which almost fit into a core's cache.
_BLOCK_NUMBERS = 1 << 19
#: A product with fewer rows reads its other factor too often: at 20,000 columns 26 rows take one and a half times
#: as long as 104 (benchmarks/NOTES.md).
_BLOCK_ROWS = 128
#: Least and most rows of a slice whose work is many short calls.
_FEW_ROWS, _MANY_ROWS = 512, 8192
#: Values of one product with few columns: 8 MiB of float32.
PRODUCT_NUMBERS = 1 << 21
#: Most values in a block with this number of rows: 64 MiB of float64.
_LARGEST_BLOCK = 1 << 23


def available_cores() -> int:
    """Cores that this process may use; in a container these can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS; one in a thread that must stay on its core."""
    cores = 1 if getattr(_thread, "stays", False) else available_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isascii() and asked.isdigit() and int(asked) > 0 else cores


class _OneCoreEach:
    """Limits matrix products to one core each as long as any thread is inside the `with` block.

    The limit holds for the whole process, so the first thread to enter sets it and the last to leave lifts it.
    Otherwise callers in several threads would restore each other's limits.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._blas: ThreadpoolController | None = None
        self._limiter: Any = None
        self._leave_control: Callable[[], None] = lambda: None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                if self._blas is None:  # done once, because finding the libraries takes a millisecond
                    from threadpoolctl import OpenBLASController, ThreadpoolController

                    self._blas = ThreadpoolController()
                    # Any thread may lift the limit; newer threadpoolctl would accept only the thread that set it.
                    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
                    self._leave_control = clear or self._leave_control
                self._limiter = self._blas.limit(limits=1, user_api="blas")
                self._leave_control()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._limiter.restore_original_limits()
                    self._leave_control()


#: `with products_on_one_core():` is for code that runs at the same time as other work of this process.
products_on_one_core = _OneCoreEach()
_thread = local()

if hasattr(os, "register_at_fork"):
    # A forked child has no thread that could release a lock held at the fork, so it starts with a new one.
    os.register_at_fork(after_in_child=products_on_one_core.__init__)  # type: ignore[misc]


def stay_on_this_core() -> None:
    """Make `run_blocks` use no other core if this thread calls it, because the caller already keeps them busy."""
    _thread.stays = True


def scratch(name: str, *shape: int) -> NDArray[np.float32]:
    """Memory for one purpose with undefined content; this thread's next call for the same purpose reuses it.

    With new memory for every product, the system would hand out its pages one by one, to one thread after another.

    Examples
    --------
    >>> scratch("weights", 2, 3).shape
    (2, 3)
    """
    kept: dict[str, NDArray[np.float32]] = vars(_thread).setdefault("scratch", {})
    numbers = math.prod(shape)
    if name not in kept or kept[name].size < numbers:
        kept[name] = np.empty(numbers, dtype=np.float32)
    return kept[name][:numbers].reshape(shape)


def slices(n_rows: int, *, step: int) -> Iterator[slice]:
    """All rows, `step` at a time.

    Examples
    --------
    >>> list(slices(5, step=2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def row_blocks(n_rows: int, *, n_columns: int) -> Iterator[slice]:
    """Consecutive row slices of an (n_rows, n_columns) matrix, each of bounded size."""
    columns = max(1, n_columns)
    step = max(1, _BLOCK_NUMBERS // columns, min(_BLOCK_ROWS, _LARGEST_BLOCK // columns))
    return slices(n_rows, step=step)


def product_blocks(n_rows: int, *, n_columns: int) -> Iterator[slice]:
    """Row slices large enough for fast products, small enough for bounded memory."""
    # Few rows against many columns would read the columns from memory repeatedly.
    step = max(PRODUCT_NUMBERS, min(512 * n_columns, 8 * PRODUCT_NUMBERS)) // max(1, n_columns)
    return slices(n_rows, step=max(1, step))


def run_blocks(work: Callable[[slice], None], blocks: Iterable[slice]) -> None:
    """Call `work` on every block, several at a time; each call may write only to its own rows.

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
    parts, stays = list(blocks), getattr(_thread, "stays", False)
    threads = min(thread_count(), len(parts))
    # Two layers of threads would compete for the cores: blocks run in parallel, each product on one core. A single
    # block is limited too, because BLAS threads keep spinning for a while after their own product.
    with products_on_one_core():
        if threads > 1:
            with ThreadPoolExecutor(threads, initializer=stay_on_this_core) as pool:
                # Reading the results raises the first error.
                for _ in pool.map(work, parts):
                    pass
            return
        # A single block may distribute its own work; with several blocks each reuses the memory of the previous one.
        _thread.stays = stays or len(parts) > 1
        try:
            for part in parts:
                work(part)
        finally:
            _thread.stays = stays
            if not stays:
                vars(_thread).pop("scratch", None)


def shared_blocks(n_rows: int, *, least: int = 128, most: int = 512) -> Iterator[slice]:
    """Slices for `run_blocks`, smaller towards the end, so that no core waits long for others; one slice for few rows.

    Parameters
    ----------
    n_rows : int
    least, most : int
        Rows of a slice. `least` is large enough for a fast product.

    Examples
    --------
    >>> list(shared_blocks(500))
    [slice(0, 500, None)]
    """
    threads, start = thread_count(), 0
    while start < n_rows:
        even = most if threads == 1 or n_rows <= 4 * least else (n_rows - start) // (2 * threads)
        stop = min(start + min(most, max(least, even)), n_rows)
        yield slice(start, stop)
        start = stop


def core_blocks(n_rows: int) -> Iterator[slice]:
    """Slices for `run_blocks`, one per core, for work of many short calls, each of which then waits for the GIL.

    Examples
    --------
    >>> list(core_blocks(400))
    [slice(0, 400, None)]
    """
    step = min(max(_FEW_ROWS, -(-n_rows // thread_count())), _MANY_ROWS)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
