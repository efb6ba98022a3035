"""Gaussian noise whose stream depends on (seed, site, round, step) alone, for simulations.

Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a counter into random
bits, so any site's noise can be drawn by any thread in any order. Pairs of 32-bit words become normals by Box-Muller.
Whoever knows the seed can remove this noise again: it is for simulations, not for releases from a real site.
"""

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import Protocol

import numba as nb
import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import InputError
from fedmest.core.fastmath import EXACT, logarithm, sine_cosine, small_integer

MULTIPLY_A, MULTIPLY_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_A, WEYL_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
BLOCK = 64
TO_UNIT = 1.0 / 4294967296.0
MIN_PARALLEL = 20_000  # normals below which starting threads costs more than it saves
LOCAL_STEPS = 1 << 16  # streams per round: local step t of round r draws from stream r * LOCAL_STEPS + t

Keys = npt.NDArray[np.uint64]


@nb.njit("void(u8[:, ::1], i8, u8, u8)", cache=True)
def philox(words, width, k0, k1):  # type: ignore[no-untyped-def]
    """Encrypt `width` counters in place: column i of `words` holds the four 32-bit words of one counter."""
    c0, c1, c2, c3 = words[0], words[1], words[2], words[3]
    for _ in range(10):
        for i in range(width):
            a = MULTIPLY_A * (c0[i] & LOW)
            b = MULTIPLY_B * (c2[i] & LOW)
            c0[i] = (b >> SHIFT) ^ c1[i] ^ k0
            c1[i] = b & LOW
            c2[i] = (a >> SHIFT) ^ c3[i] ^ k1
            c3[i] = a & LOW
        k0 = (k0 + WEYL_A) & LOW
        k1 = (k1 + WEYL_B) & LOW


@nb.njit("void(u8[::1], u8[::1], i8, f8, f8[::1], f8[::1])", fastmath=EXACT, error_model="numpy", cache=True)
def _box_muller(first, second, width, sd, cosines, sines):  # type: ignore[no-untyped-def]
    """Two normals from each pair of 32-bit words; (word + 1/2) / 2^32 never hits 0 or 1."""
    for i in range(width):
        radius = sd * math.sqrt(-2.0 * logarithm((small_integer(np.int64(first[i])) + 0.5) * TO_UNIT))
        sine, cosine = sine_cosine((small_integer(np.int64(second[i])) + 0.5) * TO_UNIT)
        cosines[i] = radius * cosine
        sines[i] = radius * sine


@nb.njit("void(f8[::1], f8, u8, u8, u8)", cache=True)
def add_normals(values, sd, key, seed, stream):  # type: ignore[no-untyped-def]
    """values += sd * Z, Z the standard normals of this site (key), seed and stream.

    A block of counters at a time, in loops that vectorise; each counter gives four normals.
    """
    block = min(BLOCK, (values.size + 3) // 4)
    words = np.empty((4, block), np.uint64)
    normals = np.empty((4, block))
    for first in range(0, values.size, 4 * block):
        count = min(4 * block, values.size - first)
        width = (count + 3) // 4
        for i in range(width):
            words[0, i] = np.uint64(first // 4 + i)
            words[1, i] = stream & LOW
            words[2, i] = seed & LOW
            words[3, i] = seed >> SHIFT
        philox(words, width, key & LOW, key >> SHIFT)
        _box_muller(words[0], words[1], width, sd, normals[0], normals[1])
        _box_muller(words[2], words[3], width, sd, normals[2], normals[3])
        for quarter in range(4):
            begin = first + quarter * width
            for i in range(min(width, values.size - begin)):
                values[begin + i] += normals[quarter, i]


@nb.njit("void(f8[:, ::1], f8[::1], i8[::1], u8[::1], u8, u8)", parallel=True, cache=True)
def _add_by_site(values, sds, sites, keys, seed, stream):  # type: ignore[no-untyped-def]
    if values.size < MIN_PARALLEL:
        for i in range(sites.size):
            if sds[i] > 0.0:
                add_normals(values[i], sds[i], keys[sites[i]], seed, stream)
    else:
        for i in nb.prange(sites.size):
            if sds[i] > 0.0:
                add_normals(values[i], sds[i], keys[sites[i]], seed, stream)


@nb.njit("void(f8[::1], i8[::1], u8[::1], u8)", parallel=True, cache=True)
def _fill_by_site(values, offsets, keys, seed):  # type: ignore[no-untyped-def]
    for site in nb.prange(keys.size):
        add_normals(values[offsets[site] : offsets[site + 1]], 1.0, keys[site], seed, LOW)


def random_ranks(offsets: npt.NDArray[np.int64], keys: Keys, seed: int) -> npt.NDArray[np.float64]:
    """One random number per row, from its site's key, its place in the site and the seed alone; for shuffling."""
    values = np.zeros(int(offsets[-1]))
    _fill_by_site(values, offsets, keys, np.uint64(seed))
    return values


class Noise(Protocol):
    """Source of noise: what a query adds to its values before they leave a site."""

    def add(
        self,
        values: npt.NDArray[np.float64],
        sds: npt.NDArray[np.float64],
        sites: npt.NDArray[np.int64],
        release: int = 0,
    ) -> None:
        """values[i] += sds[i] Z_i, Z_i the standard normals of site sites[i] for this release."""

    def add_step(self, values: npt.NDArray[np.float64], sd: float, site: int, step: int) -> None:
        """values += sd Z, Z the standard normals of a site's local step."""


@dataclass(frozen=True)
class SeededNoise:
    """Noise of one round that follows from site keys, a 64-bit seed and the number of the round."""

    keys: Keys
    seed64: int
    round: int

    def stream(self, release: int = 0) -> np.uint64:
        """The stream of one release of the round."""
        if not 0 <= self.round < LOCAL_STEPS:
            raise ValueError(f"round {self.round}: beyond {LOCAL_STEPS} rounds noise would repeat")
        return np.uint64(self.round * LOCAL_STEPS + release)

    def add(
        self,
        values: npt.NDArray[np.float64],
        sds: npt.NDArray[np.float64],
        sites: npt.NDArray[np.int64],
        release: int = 0,
    ) -> None:
        _add_by_site(values, sds, sites, self.keys, np.uint64(self.seed64), self.stream(release))

    def add_step(self, values: npt.NDArray[np.float64], sd: float, site: int, step: int) -> None:
        """The same as in the compiled loops."""
        if sd > 0.0:
            add_normals(values, sd, self.keys[site], np.uint64(self.seed64), self.stream(step))


def derive_seed(seed: int | None, purpose: str = "") -> int:
    """64-bit seed for any integer seed.

    Parameters
    ----------
    seed : int or None
        None draws from the operating system.
    purpose : str
        What the seed is for. Two fits that shared noise would publish an exact difference, so each has its own.

    Returns
    -------
    int
        From 0 to 2^64 - 1.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
        raise InputError(f"seed={seed!r} must be a whole number")
    if seed is None:
        return secrets.randbits(64)
    digest = hashlib.blake2b(f"{int(seed)}/{purpose}".encode(), digest_size=8, person=b"fedmest seed")
    return int.from_bytes(digest.digest(), "little")


def site_keys(names: npt.NDArray[np.object_]) -> Keys:
    """One 64-bit key per site, from its name alone."""
    from pandas.util import hash_array

    return np.asarray(hash_array(names, hash_key="fedmest site key", categorize=False), dtype=np.uint64)
