"""Cells to numbers: joblib hands them to processes here, or to a Dask or Ray cluster; one process stores them."""

import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec

from fedmest.core.exceptions import InputError
from fedmest.studies.cells import Cell, FitRecord, run
from fedmest.studies.store import Store

BACKENDS = {"loky": ("joblib", "studies"), "dask": ("distributed", "dask"), "ray": ("ray", "ray")}  # package, extra
ORPHANED = 20  # seconds without work after which processes end, if their parent was killed


@dataclass(frozen=True)
class Done:
    """How far a run is: cells, and the work that is in them."""

    cells: int
    of_cells: int
    work: float
    of_work: float


def complete(
    cells: Sequence[Cell],
    store: Store,
    workers: int,
    backend: str = "loky",
    address: str | None = None,
    progress: Callable[[Done], None] | None = None,
) -> None:
    """Compute those of the cells that the store has not got, and store each as it comes in.

    `workers` counts processes on this machine; at the `address` of a cluster, the cells in flight.
    """
    check(workers, backend, address)
    check_installed(backend)
    missing = store.missing(cells)
    work = math.fsum(cell.cost() for cell in cells)
    done = Done(len(cells) - len(missing), len(cells), work - math.fsum(cell.cost() for cell in missing), work)
    if progress is not None:
        progress(done)
    if not missing:
        return
    with _cluster(backend, workers, address):
        for cell, rows, seconds in _finished(missing, backend, workers):
            store.add(cell, rows, seconds)
            done = replace(done, cells=done.cells + 1, work=done.work + cell.cost())
            if progress is not None:
                progress(done)


def check(workers: int, backend: str, address: str | None) -> None:
    """Whether the call makes sense."""
    if workers < 1:
        raise InputError(f"workers={workers} must be at least 1")
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "loky" and address is not None:
        raise InputError("--address goes with --backend dask or ray")


def check_installed(backend: str) -> None:
    """Raise an InputError if the package of a backend is not installed."""
    package, extra = BACKENDS[backend]
    if find_spec(package) is None:
        raise InputError(f"backend {backend} needs {package}: pip install 'fedmest[{extra}]'")


def _timed(cell: Cell) -> tuple[Cell, list[FitRecord], float]:
    if threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    start = time.perf_counter()
    try:
        rows = run(cell)
    except ValueError as error:
        raise InputError(f"{cell.study}: no rows under these settings ({error}); try a smaller --beta") from error
    return cell, rows, time.perf_counter() - start


def _finished(cells: Sequence[Cell], backend: str, workers: int) -> Iterator[tuple[Cell, list[FitRecord], float]]:
    """Cells as they are done. Ray's backend gives back whole lists only, so it gets a few cells at a time."""
    from joblib import Parallel, delayed

    if backend == "ray":
        with Parallel(workers, batch_size=1) as pool:
            for start in range(0, len(cells), 4 * workers):
                yield from pool(delayed(_timed)(cell) for cell in cells[start : start + 4 * workers])
        return
    parallel = Parallel(workers, batch_size=1, pre_dispatch="2*n_jobs", return_as="generator_unordered")
    yield from parallel(delayed(_timed)(cell) for cell in cells)


@contextmanager
def _cluster(backend: str, workers: int, address: str | None) -> Iterator[None]:
    """Make the backend joblib's own for a while; without an address Dask and Ray start on this machine."""
    from joblib import parallel_config

    if backend == "loky":
        with parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=ORPHANED):
            yield
        return
    with (_dask if backend == "dask" else _ray)(workers, address), parallel_config(backend):
        yield


@contextmanager
def _dask(workers: int, address: str | None) -> Iterator[None]:
    from distributed import Client

    own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(address, timeout=10) if address else Client(**own)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({error}); is it running?") from error
    with client:
        yield


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[None]:
    import ray
    from ray.util.joblib import register_ray

    try:
        ray.init(address=address, **({} if address else {"num_cpus": workers, "include_dashboard": False}))
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {address} ({error}); is it running?") from error
    register_ray()
    try:
        yield
    finally:
        ray.shutdown()
