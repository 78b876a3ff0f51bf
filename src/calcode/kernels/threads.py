"""Independent blocks on all available cores: numpy releases the interpreter lock inside its loops."""

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

#: Numbers in one block of a distance matrix: 4 MiB of float64, which a core's cache nearly holds.
_BLOCK_NUMBERS = 1 << 19
#: A product with fewer rows than this reads its other factor too often: at 20,000 columns 26 rows take half as
#: long again as 104 (benchmarks/NOTES.md).
_BLOCK_ROWS = 128
#: Rows of a slice whose work is many short calls, at least and at most.
_FEW_ROWS, _MANY_ROWS = 512, 8192
#: Numbers of one product where columns are few: 8 MiB of float32.
PRODUCT_NUMBERS = 1 << 21
#: Numbers in a block that has these rows, at most: 64 MiB of float64.
_LARGEST_BLOCK = 1 << 23


def available_cores() -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count() -> int:
    """Cores this process may use, or fewer where OMP_NUM_THREADS says so; one in a thread that stays on its core."""
    cores = 1 if getattr(_thread, "stays", False) else available_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isascii() and asked.isdigit() and int(asked) > 0 else cores


class _OneCoreEach:
    """Matrix products on one core each for as long as anybody is inside.

    The limit holds for the whole process, so the first who comes sets it and the last who leaves lifts it: callers in
    several threads would otherwise restore each other's.
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
                if self._blas is None:  # finding the libraries takes a millisecond, so it is done once
                    from threadpoolctl import OpenBLASController, ThreadpoolController

                    self._blas = ThreadpoolController()
                    # Any thread may lift the limit: newer threadpoolctl would heed the one that set it only.
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


#: `with products_on_one_core():` for code that runs at the same time as other work of this process.
products_on_one_core = _OneCoreEach()
_thread = local()

if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads that may hold the lock, so nothing would release it.
    os.register_at_fork(after_in_child=products_on_one_core.__init__)  # type: ignore[misc]


def stay_on_this_core() -> None:
    """From now on `run_blocks` uses no other core when this thread calls it: its caller keeps them busy itself."""
    _thread.stays = True


def scratch(name: str, *shape: int) -> NDArray[np.float32]:
    """Memory for one purpose, its content undefined; the next call of this thread for it gives the same memory.

    New memory for every product would be handed out by the system page by page, to all threads in turn.

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
    """Consecutive slices of the rows of an (n_rows, n_columns) matrix, each of bounded size."""
    columns = max(1, n_columns)
    step = max(1, _BLOCK_NUMBERS // columns, min(_BLOCK_ROWS, _LARGEST_BLOCK // columns))
    return slices(n_rows, step=step)


def product_blocks(n_rows: int, *, n_columns: int) -> Iterator[slice]:
    """Row slices large enough for a product to run at its best, small enough for memory to stay bounded."""
    # Few rows against many columns would read the columns from memory again and again.
    step = max(PRODUCT_NUMBERS, min(512 * n_columns, 8 * PRODUCT_NUMBERS)) // max(1, n_columns)
    return slices(n_rows, step=max(1, step))


def run_blocks(work: Callable[[slice], None], blocks: Iterable[slice]) -> None:
    """Call `work` on every block, several at a time; each must write to its own rows only.

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
    # Two layers of threads would fight for the cores: blocks side by side, each product on one core. A single
    # block keeps to that too, because BLAS threads go on spinning for a while after a product of their own.
    with products_on_one_core():
        if threads > 1:
            with ThreadPoolExecutor(threads, initializer=stay_on_this_core) as pool:
                # Reading the results raises the first error.
                for _ in pool.map(work, parts):
                    pass
            return
        # A single block may share its own work out; several keep their memory from one to the next.
        _thread.stays = stays or len(parts) > 1
        try:
            for part in parts:
                work(part)
        finally:
            _thread.stays = stays
            if not stays:
                vars(_thread).pop("scratch", None)


def shared_blocks(n_rows: int, *, least: int = 128, most: int = 512) -> Iterator[slice]:
    """Slices for `run_blocks`, smaller towards the end, so that no core waits long for another; of few rows one.

    Parameters
    ----------
    n_rows : int
    least, most : int
        Rows of a slice. Those of a product are many enough for it to run at its best.

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
    """Slices for `run_blocks`, one for each core: work of many short calls waits for the interpreter after each.

    Examples
    --------
    >>> list(core_blocks(400))
    [slice(0, 400, None)]
    """
    step = min(max(_FEW_ROWS, -(-n_rows // thread_count())), _MANY_ROWS)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
