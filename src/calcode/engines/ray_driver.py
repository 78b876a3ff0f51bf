"""Run Ray in its own process: its output stays there, and its death becomes an error and does not end the command."""

from __future__ import annotations

import importlib.util
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from calcode import errors
from calcode.arrays import AnyArray
from calcode.datasets.workers import end_with_parent, without_script
from calcode.engines.journal import Journal
from calcode.errors import CalcodeError, CalcodeWarning, EngineError
from calcode.files import canonical_json
from calcode.kernels.threads import available_cores

if TYPE_CHECKING:
    import pyarrow

#: Logical CPUs in addition to the workers: without them, the tasks that feed the workers would wait forever.
_SPARE_CPUS = 2
#: Enough for row ranges and paths, the only data sent; images and embeddings stay with the workers.
_OBJECT_STORE_BYTES = 256 << 20
#: Seconds that a cluster may take to answer.
_CONNECT_SECONDS = 20.0
#: Seconds that Ray may take to end before its process is killed.
_END_SECONDS = 20.0
#: How often a shard may end its worker process before the job is given up.
_MAX_ATTEMPTS = 4
#: Names of sockets in Ray's folder are limited to 107 bytes, and Ray adds about 70 to the folder's name.
_LONGEST_FOLDER = 35


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """Number of workers, and the resources of each."""

    workers: int
    cpus: int
    gpus: int


class ShardWork(Protocol):
    """The work of a worker, with the model that it holds."""

    def __call__(self, task: Any) -> tuple[pyarrow.Table | None, Mapping[str, str]]:
        """The rows of a task, which is a JSON value, and by id the reason why other images have no row."""


def finished_shards(
    tasks: Mapping[str, Any], *, load: Callable[[PoolSize], ShardWork], journal: Journal, use_gpus: bool
) -> Generator[str, None, None]:
    """Yield the names of shards as they are finished, in any order.

    If the caller has connected to Ray, that connection is used. Otherwise RAY_ADDRESS names the cluster. Without it Ray
    runs only on this machine, in a private folder, and ends with the generator, which must be closed. A worker that
    dies is replaced, and its shards go to other workers.

    Parameters
    ----------
    tasks : mapping of str to object
        A JSON value for each shard, by name.
    load : callable
        Returns the work; called in a worker when its first task arrives. It must be picklable.
    journal : Journal
        On a disk that all workers can access.
    use_gpus : bool
        Whether the workers would use GPUs if there are any.
    """
    if not tasks:
        return
    if importlib.util.find_spec("ray") is None:
        raise EngineError("engine: 'ray' needs ray, which is not installed; pip install 'calcode[ray]'")
    ray = sys.modules.get("ray")
    address = os.environ.get("RAY_ADDRESS") or None
    if ray is not None and ray.is_initialized():
        address = str(ray.get_runtime_context().gcs_address)
    elif address is not None:
        # If nobody answers, Ray would keep trying for minutes.
        host, _, port = address.rpartition("//")[2].rpartition(":")
        if host and port.isdigit():
            try:
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                raise EngineError(f"engine: {_unreachable(address)} ({error})") from error
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    kept = f"finished parts are kept in {journal.path}, run again to go on from there"
    # The temporary folder is accessible only to its owner.
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"
    with tempfile.TemporaryDirectory(prefix="calcode-ray-", dir=place, ignore_cleanup_errors=True) as folder:
        driver = context.Process(
            target=_drive, args=(sender, folder, address, dict(tasks), load, journal, use_gpus), daemon=True
        )
        with without_script(load, journal):
            driver.start()
        sender.close()
        try:
            while True:
                wait([receiver, driver.sentinel])
                try:
                    kind, text = receiver.recv() if receiver.poll() else ("dead", "")
                except (EOFError, OSError):
                    kind, text = "dead", ""
                if kind == "finished":
                    yield text
                elif kind == "done":
                    return
                elif kind == "dead":
                    driver.join()
                    raise EngineError(
                        f"engine: Ray ended before the work was done (exit code {driver.exitcode}); {kept}"
                    )
                elif kind == "ray":
                    raise EngineError(f"engine: Ray failed ({text}); {kept}")
                else:
                    # An error of calcode is raised by its class, as in the local engine.
                    raise getattr(errors, kind, EngineError)(text)
        finally:
            receiver.close()
            driver.terminate()
            driver.join(_END_SECONDS)
            _kill_session(driver.pid)
            driver.join()


def pool_size(ray: Any, *, tasks: int, use_gpus: bool) -> PoolSize:
    """One worker per GPU if GPUs are useful and available, else one per CPU; no more than there are tasks.

    Parameters
    ----------
    ray : module
    tasks : int
    use_gpus : bool
        Whether the workers would use a GPU.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1 and machine.get("CPU", 0) >= 1]
    if use_gpus and with_gpus:
        # A worker must fit on the machine with the fewest CPUs per GPU.
        cpus = min(int((machine["CPU"] - _SPARE_CPUS) // machine["GPU"]) for machine in with_gpus)
        workers = sum(int(min(machine["GPU"], machine["CPU"])) for machine in with_gpus)
        return PoolSize(workers=min(workers, tasks), cpus=max(1, cpus), gpus=1)
    workers = int(sum(machine.get("CPU", 0) for machine in machines)) - _SPARE_CPUS
    return PoolSize(workers=max(1, min(workers, tasks)), cpus=1, gpus=0)


class ShardWorker:
    """An actor that loads its model once and then makes one shard after another.

    Parameters
    ----------
    load : callable
        Returns the work, given the size of the pool.
    size : PoolSize
    journal : Journal
    """

    def __init__(self, *, load: Callable[[PoolSize], ShardWork], size: PoolSize, journal: Journal) -> None:
        self._load = load
        self._size = size
        self._journal = journal
        self._work: ShardWork | None = None

    def __call__(self, batch: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Make the shards of a batch of tasks; errors are returned, not raised."""
        answers = []
        for name, task in zip(batch["name"].tolist(), batch["task"].tolist(), strict=True):
            answer = {"name": name, "kind": "", "message": ""}
            try:
                self._finish(name, json.loads(task))
            except (CalcodeError, OSError) as error:
                # If raised, Ray would wrap it in a traceback of several pages.
                answer |= {"kind": type(error).__name__, "message": str(error)}
            answers.append(answer)
        return {key: np.array([answer[key] for answer in answers]) for key in answers[0]}

    def _finish(self, name: str, task: Any) -> None:
        # The previous worker may have been killed after writing its shard and before answering.
        if self._journal.finished(name) is not None:
            return
        if self._journal.attempt(name) > _MAX_ATTEMPTS:
            raise EngineError(
                f"engine: the shard {name} ended its worker {_MAX_ATTEMPTS} times (out of memory, or a defect); "
                "finished parts are kept, run again to go on from there"
            )
        self._work = self._work or self._load(self._size)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            table, skipped = self._work(task)
        messages = [str(entry.message) for entry in caught if issubclass(entry.category, CalcodeWarning)]
        self._journal.keep(name, table, skipped=skipped, warnings=messages)


@contextmanager
def ray_session(folder: str, *, address: str | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster or to a Ray on this machine only, with its files in `folder`."""
    # Set before Ray is imported: it reads some of them only then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Despite its name, this makes Ray on any system listen only to this machine; if told 127.0.0.1, Ray would
        # use the address that other machines see.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Seconds that the driver tries to reach a dead Ray before it gives up.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
        local = {
            "num_cpus": max(available_cores(), 2) + _SPARE_CPUS,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
        }
    # Ray's warnings about its own changes are for developers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.data

        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            ray.init(address=address, **quiet) if address else ray.init(**local, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise EngineError(
                f"engine: {_unreachable(address) if address else 'Ray cannot start here'} ({_last_line(error)})"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _unreachable(address: str) -> str:
    return f"the cluster at RAY_ADDRESS={address} cannot be reached"


def _drive(
    sender: Connection,
    folder: str,
    address: str | None,
    tasks: dict[str, Any],
    load: Callable[[PoolSize], ShardWork],
    journal: Journal,
    use_gpus: bool,
) -> None:
    """The process that talks to Ray: it sends the name of every finished shard, then "done", or the error."""
    if hasattr(os, "setsid"):
        # A new session, because Ctrl-C is for the command, which ends this process.
        os.setsid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    end_with_parent(_leave_nothing, folder)
    try:
        with ray_session(folder, address=address) as ray:
            size = pool_size(ray, tasks=len(tasks), use_gpus=use_gpus)
            ray.data.DataContext.get_current().enable_progress_bars = False
            items = [{"name": name, "task": canonical_json(task)} for name, task in tasks.items()]
            # One block per task: it is what a worker gets, and what is given out again if the worker dies.
            answers = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                ShardWorker,
                fn_constructor_kwargs={"load": load, "size": size, "journal": journal},
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=size.workers),
                num_cpus=size.cpus,
                num_gpus=size.gpus or None,
            )
            for answer in answers.iter_rows():
                kind = answer["kind"]
                sender.send((kind, answer["message"]) if kind else ("finished", answer["name"]))
            sender.send(("done", ""))
    except CalcodeError as error:
        sender.send((type(error).__name__, str(error)))
    except Exception as error:
        sender.send(("ray", _last_line(error)))


def _leave_nothing(folder: str) -> None:
    """Clean up as the command would have done if it had not been killed: neither Ray nor its folder remains."""
    shutil.rmtree(folder, ignore_errors=True)
    _kill_session(os.getpid())


def _kill_session(leader: int | None) -> None:
    """Kill the remaining processes of the session that Ray's process led."""
    if leader is not None and hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
