"""Runs that can be stopped and taken up again: a folder holds what the sites' replies of each round added up to.

Of small models it holds the replies themselves, too. A method is a fixed function of these, so a resumed run replays
them and goes on where the old one stopped, with the same result to the last bit. The seed is written before the
first round: a round whose sum was lost is asked again with the noise it had, never with fresh noise, which would be a
second release. Whoever has the seed can take the noise off again: files and new folders are for their owner only,
whatever the umask. Keep the folder as safe as the rows.
"""

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.files import make_private_folder, open_private, write_atomic
from fedmest.core.typing import FloatArray, IntArray

MAX_STORED = 1_000_000  # floats of a round; beyond, only their weighted sum goes to the folder


@dataclass(frozen=True)
class StoredRound:
    """A round: the weighted sum of the replies, whose they were, and they themselves (None where they are too many)."""

    aggregate: FloatArray
    sites: IntArray
    values: FloatArray | None


class Checkpoint:
    """The folder of one fit: `identity` is all that makes it this fit and no other, `seed64` the seed of its noise."""

    def __init__(self, folder: str | Path, identity: str, seed64: int) -> None:
        self.folder = Path(folder)
        make_private_folder(self.folder)
        self.lock = os.fdopen(open_private(self.folder / "lock", os.O_WRONLY | os.O_CREAT), "w")
        try:  # two runs would release the same rounds, each with noise of its own
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            self.lock.close()
            raise InputError(f"checkpoint {str(folder)!r} is in use by another run; wait for it to end") from taken
        head = self.folder / "fit.json"
        mark = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        if not head.exists():
            write_atomic(head, lambda file: file.write(json.dumps({"fit": mark, "seed64": seed64}).encode()))
        stored = json.loads(head.read_text(encoding="utf-8"))
        if stored["fit"] != mark:
            self.lock.close()
            raise InputError(
                f"checkpoint {str(folder)!r} belongs to another fit (other data, settings or seed); name another folder"
            )
        self.seed64 = int(stored["seed64"])

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        """Let other runs have the folder."""
        self.lock.close()

    def load(self, number: int) -> StoredRound | None:
        """None where the round is still to come."""
        path = self._path(number)
        if not path.exists():
            return None
        with np.load(path) as arrays:
            return StoredRound(arrays["combined"], arrays["sites"], arrays.get("values"))

    def save(self, number: int, kept: StoredRound) -> None:
        arrays: dict[str, Any] = {"combined": kept.aggregate, "sites": kept.sites}
        if kept.values is not None and kept.values.size <= MAX_STORED:
            arrays["values"] = kept.values
        write_atomic(self._path(number), lambda file: np.savez(file, **arrays))

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number + 1:05d}.npz"
