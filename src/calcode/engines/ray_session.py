"""Ray, started on this machine or found by RAY_ADDRESS; quiet, and without a network of its own."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calcode.backbones.cores import available_cores
from calcode.errors import EngineError

#: Logical processors beyond the workers: with none left, whatever feeds the workers would wait for them forever.
_SPARE_CPUS = 2
#: Enough for row ranges and paths, which are all that travels; images and embeddings stay with the workers.
_OBJECT_STORE_BYTES = 256 << 20
#: How long a cluster may take to answer.
_KNOCK_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """How many workers there are, and what each of them may use."""

    workers: int
    cpus: int
    gpus: int


@contextmanager
def ray_session() -> Iterator[Any]:
    """The module `ray`, connected.

    A connection that the caller has made is used and left open. Otherwise RAY_ADDRESS names the cluster; without it
    Ray runs on this machine alone, and ends with the block.
    """
    ray = _imported()
    # Ray's notices about its own changes are for those who program it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", ResourceWarning)
        ours = not ray.is_initialized()
        if ours:
            _connect(ray)
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


def pool_size(ray: Any, *, ranges: int, on_gpus: bool) -> PoolSize:
    """One worker per GPU where they are of use and there are any, else one per processor; no more than row ranges.

    Parameters
    ----------
    ray : module
    ranges : int
        How many row ranges there are to work on.
    on_gpus : bool
        Whether the workers would use one.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1 and machine.get("CPU", 0) >= 1]
    if on_gpus and with_gpus:
        # A worker must fit on the machine that has the fewest processors per GPU.
        cpus = min(int((machine["CPU"] - _SPARE_CPUS) // machine["GPU"]) for machine in with_gpus)
        workers = sum(int(min(machine["GPU"], machine["CPU"])) for machine in with_gpus)
        return PoolSize(workers=min(workers, ranges), cpus=max(1, cpus), gpus=1)
    workers = int(sum(machine.get("CPU", 0) for machine in machines)) - _SPARE_CPUS
    return PoolSize(workers=max(1, min(workers, ranges)), cpus=1, gpus=0)


def _imported() -> Any:
    # Before Ray is loaded: it looks at some of them only then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if not os.environ.get("RAY_ADDRESS"):
        # Despite its name it makes Ray on any system listen to this machine alone; asked for 127.0.0.1, Ray would
        # take the address that other machines see.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            import ray.data
    except ImportError as error:
        raise EngineError(
            f"engine: 'ray' needs {error.name or error}, which is not installed; pip install 'calcode[ray]'"
        ) from error
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


def _knock(address: str) -> None:
    """Raise at once where nobody answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            ray.init(
                num_cpus=max(available_cores(), 2) + _SPARE_CPUS,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = (
            f"the cluster at RAY_ADDRESS={address} cannot be reached" if address else "Ray cannot start here"
        )
        raise EngineError(f"engine: {where} ({str(error).strip().splitlines()[0]})") from error
