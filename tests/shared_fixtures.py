"""Fixtures that tests in several folders share; `conftest.py` names this file as a plugin.

What they need is imported when they are asked for: not every machine has all extras.
"""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fedmest.site.vault import Vault
    from vaults import Nursery


# -- vaults --------------------------------------------------------------------------------------------------


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder where syncs are free, and whose name is short enough for sockets."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="v") as name:
        yield Path(name)


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """`fedmest site serve` sets the log up for its process; here it must not outlive a test."""
    log = logging.getLogger("fedmest")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate, log.level = before


@pytest.fixture(scope="module")
def nursery(shared: Path) -> Iterator["Nursery"]:
    from vaults import Nursery

    with Nursery(shared) as program:
        yield program


@pytest.fixture(scope="module")
def seeded(shared: Path) -> Iterator[dict[str, "Vault"]]:
    """Four vaults that take seeds, with budgets without end."""
    from vault_cases import FRAMES, INSECURE
    from vaults import open_vaults, write_sites

    generous = {"budget": {"lifetime": 1e6, "run": 100.0}, "allow": {"calibrations": ["certified", "paper"]}}
    yield from closing(open_vaults(write_sites(shared / "seeded", FRAMES, **INSECURE, **generous)))


@pytest.fixture(scope="module")
def real(shared: Path) -> Iterator[dict[str, "Vault"]]:
    """Four vaults that draw their own noise."""
    from vault_cases import FRAMES
    from vaults import open_vaults, write_sites

    yield from closing(open_vaults(write_sites(shared / "real", FRAMES, budget={"lifetime": 1e6, "run": 100.0})))


def closing(opened: dict[str, "Vault"]) -> Iterator[dict[str, "Vault"]]:
    yield opened
    for vault in opened.values():
        vault.close()


@pytest.fixture(scope="module")
def processes(nursery: "Nursery", shared: Path) -> Iterator[dict[str, Path]]:
    """Four vault processes that take seeds; their policies."""
    from vault_cases import FRAMES, INSECURE
    from vaults import write_sites

    paths = write_sites(shared / "processes", FRAMES, budget={"lifetime": 1e6, "run": 100.0}, **INSECURE)
    running = [nursery.serve(path) for path in paths.values()]
    yield paths
    for process in running:
        process.kill()


# -- studies -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corner, run in one go by one worker."""
    from fedmest.interface.study_output import reproduce
    from fedmest.studies.reproduce import ReproductionJob
    from study_cases import corner

    folder = tmp_path_factory.mktemp("alone")
    reproduce(ReproductionJob((corner(),), 2, {}), folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`CALL`, run in one go by one worker."""
    from fedmest.interface.cli.main import main
    from study_cases import CALL

    folder = tmp_path_factory.mktemp("whole")
    assert main([*CALL, "--workers", "1", "--out", str(folder)]) == 0
    return folder


# -- the documentation's site --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The built site, and what was said while it was built."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement of its successor
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + done.stderr
