"""Runs that can be stopped and taken up again: a folder holds what the sites' replies of each round added up to.

Of small models it holds the replies themselves, too. A method is a fixed function of these, so a resumed run replays
them and goes on where the old one stopped, with the same result to the last bit. The seed word is written before the
first round: a round whose sum was lost is asked again with the noise it had, never with fresh noise, which would be a
second release. Whoever has the seed word can take the noise off again: keep the folder as safe as the rows.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.privacy.gdp import Array

LARGEST_KEPT = 1_000_000  # floats of a round; beyond, only their weighted sum goes to the folder


@dataclass(frozen=True)
class Kept:
    """A round: the weighted sum of the replies, whose they were, and they themselves (None where they are too many)."""

    combined: Array
    sites: Index
    values: Array | None


class Checkpoint:
    """The folder of one fit, `identity` being all that makes it this fit and no other; `word` is its seed word."""

    def __init__(self, folder: str | Path, identity: str, word: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = (self.folder / "lock").open("w")
        try:  # two runs would release the same rounds, each with noise of its own
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            self.lock.close()
            raise InputError(f"checkpoint {str(folder)!r} is in use by another run; wait for it to end") from taken
        head = self.folder / "fit.json"
        mark = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        if not head.exists():
            write_all(head, lambda file: file.write(json.dumps({"fit": mark, "word": word}).encode()))
        stored = json.loads(head.read_text(encoding="utf-8"))
        if stored["fit"] != mark:
            self.lock.close()
            raise InputError(
                f"checkpoint {str(folder)!r} belongs to another fit (other data, settings or seed); name another folder"
            )
        self.word = int(stored["word"])

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        """Let other runs have the folder."""
        self.lock.close()

    def load(self, number: int) -> Kept | None:
        """None where the round is still to come."""
        path = self._path(number)
        if not path.exists():
            return None
        with np.load(path) as arrays:
            return Kept(arrays["combined"], arrays["sites"], arrays.get("values"))

    def save(self, number: int, kept: Kept) -> None:
        arrays: dict[str, Any] = {"combined": kept.combined, "sites": kept.sites}
        if kept.values is not None and kept.values.size <= LARGEST_KEPT:
            arrays["values"] = kept.values
        write_all(self._path(number), lambda file: np.savez(file, **arrays))

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number + 1:05d}.npz"


def write_all(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """All of the file or nothing, whenever the process ends."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    place = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(place)  # or the name could be lost with the power
    finally:
        os.close(place)
