"""Images for studies and benchmarks: MNIST and CIFAR-10 from files, and scikit-learn's small digits.

The files are the official ones, plain or compressed (.gz, .xz), in one folder per data set:
`mnist/train-images-idx3-ubyte` and its three companions, `cifar10/data_batch_1.bin` and its five. What is read or
fetched is compared with their checksums, so that `mnist` is MNIST (others use its file names) in the official order.
"""

import gzip
import hashlib
import importlib
import io
import lzma
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import FedmestError, InputError

VARIABLE = "FEDMEST_DATA"  # names the folder
CLASSES = 10  # of every set here
UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
DIGITS_TRAIN = 1437  # of 1,797, four fifths; there is no official split
DOWNLOAD_ERRORS = (OSError, EOFError, HTTPException, LookupError, TypeError, ValueError, tarfile.TarError, zlib.error)
DOWNLOAD_TIMEOUT_S = 60.0  # without a byte from a server

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Images:
    """Images, one per row. The first `n_train` rows are the official training split (digits: our own)."""

    name: str
    pixels: Pixels  # (n, features), 0 to 255
    labels: Labels  # (n,), 0 to 9
    shape: tuple[int, ...]  # of an image: (28, 28), or (3, 32, 32) with colours first
    n_train: int


class DownloadError(FedmestError):
    """No source gave the data set. The message is one line: what was tried, and the way out."""


@dataclass(frozen=True)
class File:
    """One official file: a header, then in each row a label, or pixels, or both."""

    name: str
    rows: int
    sha256: str  # unpacked
    label: int  # bytes per row
    pixels: int
    dimensions: tuple[int, ...] | None = None  # of a row, in the header of an idx file; others have no header

    @property
    def header(self) -> bytes:
        if self.dimensions is None:
            return b""
        rank = 1 + len(self.dimensions)
        return struct.pack(f">{1 + rank}I", 0x800 + rank, self.rows, *self.dimensions)

    @property
    def size(self) -> int:
        return len(self.header) + self.rows * (self.label + self.pixels)

    def body(self, content: bytes) -> Pixels:
        return np.frombuffer(content, np.uint8, offset=len(self.header)).reshape(self.rows, -1)

    def problem(self, content: bytes) -> str:
        """What is wrong with the unpacked content, in words; empty where nothing is."""
        header = self.header
        if len(content) >= len(header) and not content.startswith(header):
            form = f">{len(header) // 4}I"
            magic, *found = struct.unpack_from(form, content)
            if magic != 0x800 + len(found):
                return f"begins with 0x{magic:08x} and not with 0x{0x800 + len(found):08x} as such an idx file does"
            expected = struct.unpack(form, header)[1:]
            return f"says it holds {_times(found)} values, not {_times(expected)}"
        if len(content) < self.size:
            return f"ends after {len(content):,} of {self.size:,} bytes"
        if len(content) > self.size:
            return f"has more than the {self.size:,} bytes it should have"
        labels = self.body(content)[:, : self.label].ravel()
        if self.label and labels.max() >= CLASSES:
            row = int(np.argmax(labels >= CLASSES))
            return f"has label {labels[row]} in row {row:,}; labels are 0 to {CLASSES - 1}"
        if hashlib.sha256(content).hexdigest() != self.sha256:
            return "has the right size but not the official checksum: other images, or a damaged copy"
        return ""


@dataclass(frozen=True)
class Archive:
    """A data set kept in files, and where to download it."""

    name: str
    shape: tuple[int, ...]
    n_train: int
    files: tuple[File, ...]  # in the order of the rows
    openml: str  # its name there; version 1
    address: str  # of the official files: a tar archive, or a folder of .gz files
    openml_first: bool
    inner: str = "."  # folder in the tar archive

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files if file.pixels)

    def decode(self, contents: Sequence[bytes]) -> Images:
        bodies = [(file, file.body(content)) for file, content in zip(self.files, contents, strict=True)]
        pixels = np.concatenate([body[:, file.label :] for file, body in bodies if file.pixels])
        labels = np.concatenate([body[:, 0] for file, body in bodies if file.label])
        return Images(self.name, pixels, labels.astype(np.int64), self.shape, self.n_train)

    def encode(self, pixels: npt.NDArray[Any], labels: npt.NDArray[Any]) -> list[bytes]:
        """The official files, from all rows in the official order."""
        contents = []
        labelled = pictured = 0
        for file in self.files:
            body = np.empty((file.rows, file.label + file.pixels), np.uint8)
            if file.label:
                body[:, 0] = labels[labelled : labelled + file.rows]
                labelled += file.rows
            if file.pixels:
                body[:, file.label :] = pixels[pictured : pictured + file.rows]
                pictured += file.rows
            contents.append(file.header + body.tobytes())
        return contents


def _mnist(part: str, rows: int, images: str, labels: str) -> tuple[File, File]:
    return (
        File(f"{part}-images-idx3-ubyte", rows, images, 0, 28 * 28, (28, 28)),
        File(f"{part}-labels-idx1-ubyte", rows, labels, 1, 0, ()),
    )


def _cifar(batch: str, sha256: str) -> File:
    return File(f"{batch}.bin", 10_000, sha256, 1, 3 * 32 * 32)


ARCHIVES = {
    "mnist": Archive(
        "mnist", (28, 28), 60_000,
        (
            *_mnist("train", 60_000, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            *_mnist("t10k", 10_000, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
        openml="mnist_784", address="https://ossci-datasets.s3.amazonaws.com/mnist", openml_first=True,
    ),
    "cifar10": Archive(
        "cifar10", (3, 32, 32), 50_000,
        (
            _cifar("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            _cifar("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            _cifar("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            _cifar("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            _cifar("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            _cifar("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        # OpenML does not say in which order its rows are, and its text form takes gigabytes to read
        openml="CIFAR_10", address="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", openml_first=False,
        inner="cifar-10-batches-bin",
    ),
}  # fmt: skip
NAMES = (*ARCHIVES, "digits")


# -- reading -------------------------------------------------------------------------------------------------


def data_folder() -> Path:
    """Where data sets are kept: the folder that FEDMEST_DATA names, else the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "fedmest"


def load(name: str, folder: str | Path | None = None) -> Images:
    """Load a data set by its name: mnist, cifar10 or digits; `folder` replaces `data_folder()`."""
    if name == "digits":
        return _digits()
    archive = _archive(name)
    paths = _complete(archive, _folder(folder))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # unpacking and checksums leave Python's lock alone
        contents = list(pool.map(_read, paths, archive.files, [name] * len(paths)))
    return archive.decode(contents)


def missing(name: str, folder: str | Path | None = None) -> list[str]:
    """The files of a data set that are not in the folder; none of digits. Contents are not looked at."""
    if name == "digits":
        return []
    archive = _archive(name)
    return [file.name for file in archive.files if _find(archive, file, _folder(folder)) is None]


def _folder(folder: str | Path | None) -> Path:
    return data_folder() if folder is None else Path(folder)


def _archive(name: str) -> Archive:
    if name not in ARCHIVES:
        raise InputError(f"there is no data set {name!r}; the data sets are {', '.join(NAMES)}")
    return ARCHIVES[name]


def _find(archive: Archive, file: File, folder: Path) -> Path | None:
    home = folder / archive.name  # plain files first: `fetch` writes such, and they read fastest
    places = [place / (file.name + suffix) for place in (home, home / archive.inner) for suffix in ("", *UNPACK)]
    return next((path for path in places if path.is_file()), None)


def _complete(archive: Archive, folder: Path) -> list[Path]:
    """Paths of all files; an InputError says how to get what is missing."""
    found = [_find(archive, file, folder) for file in archive.files]
    paths = [path for path in found if path is not None]
    if len(paths) == len(found):
        return paths
    home = folder / archive.name
    lack = archive.files[found.index(None)].name
    what = f"{home} has no {lack} (also .gz, .xz)" if paths else f"there is no data set {archive.name} in {folder}"
    if archive.name == "cifar10" and any(home.glob("**/data_batch_1")):
        what += " (the Python version is there, but unpickling can run any code: only the binary version is read)"
    raise InputError(f"{what}; run 'fedmest data fetch {archive.name}', or let {VARIABLE} name a folder that has it")


def _read(path: Path, file: File, name: str) -> bytes:
    try:
        content = path.read_bytes()
        content = UNPACK[path.suffix](content) if path.suffix in UNPACK else content
        problem = file.problem(content)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError):
        problem = f"is no {path.suffix} file, or damaged, or cut short"
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if problem:
        raise InputError(f"{path} {problem}; run 'fedmest data fetch {name}', or put a sound copy in its place")
    return content


def _digits() -> Images:
    bundled = _scikit_learn_datasets("the data set digits").load_digits()
    pixels = np.rint(bundled.data * (255 / 16)).astype(np.uint8)
    return Images("digits", pixels, bundled.target.astype(np.int64), (8, 8), DIGITS_TRAIN)


def _scikit_learn_datasets(what: str) -> Any:
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError:
        raise InputError(f"{what} needs scikit-learn: pip install scikit-learn") from None


def _times(numbers: Sequence[int]) -> str:
    return " x ".join(f"{number:,}" for number in numbers)


# -- fetching ------------------------------------------------------------------------------------------------


def fetch(name: str, folder: str | Path | None = None) -> bool:
    """Download a data set into the folder, unless a sound copy is there; returns whether it was downloaded.

    Its files appear complete and checked, or not at all.
    """
    if name == "digits":
        raise InputError("digits comes with scikit-learn; there is nothing to fetch")
    archive = _archive(name)
    place = _folder(folder)
    if not missing(name, place):
        try:
            load(name, place)
            return False
        except InputError:  # a damaged copy: what is fetched comes first from now on
            pass
    _check_writable(place / name)
    _write(place / name, archive, _download(archive, place))
    return True


def _check_writable(home: Path) -> None:
    """Raise before the download, not after it, where the folder cannot be written."""
    nearest = next(path for path in (home, *home.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        what = "may not be written" if nearest.is_dir() else "is not a folder"
        raise InputError(f"{nearest} {what}; let {VARIABLE} name another folder")


def _download(archive: Archive, folder: Path) -> list[bytes]:
    sources = [("OpenML", _from_openml), (archive.address, _from_address)]
    reasons = []
    for title, source in sources if archive.openml_first else sources[::-1]:
        try:
            contents = source(archive)
        except InputError as error:
            reasons.append(str(error))
        except DOWNLOAD_ERRORS as error:
            reasons.append(f"{title}: {' '.join(str(error).split()) or type(error).__name__}")
        else:
            problems = [file.problem(content) for file, content in zip(archive.files, contents, strict=True)]
            if not any(problems):
                return contents
            worst = next((file.name, what) for file, what in zip(archive.files, problems, strict=True) if what)
            reasons.append(f"{title}: {' '.join(worst)}")
    raise DownloadError(
        f"{archive.name} could not be fetched, and nothing was written ({'; '.join(reasons)}); try again later, or put "
        f"{archive.files[0].name} and its companions into {folder / archive.name} yourself"
    )


def _from_openml(archive: Archive) -> list[bytes]:
    datasets = _scikit_learn_datasets("OpenML's reader")
    with TemporaryDirectory(prefix="fedmest-") as cache:  # without a cache it would download everything twice
        pixels, labels = datasets.fetch_openml(
            archive.openml,
            version=1,
            data_home=cache,
            as_frame=False,
            return_X_y=True,
            n_retries=1,
            parser="pandas",
            read_csv_kwargs={"dtype": np.uint8},  # an eighth of the memory; and pandas 3.1 breaks the default (#34892)
        )
    if pixels.shape != (archive.rows, math.prod(archive.shape)):
        raise ValueError(f"it has {_times(pixels.shape)} values")
    return archive.encode(pixels, labels.astype(np.int64))


def _from_address(archive: Archive) -> list[bytes]:
    if not archive.address.endswith(".tar.gz"):
        return [gzip.decompress(_get(f"{archive.address}/{file.name}.gz")) for file in archive.files]
    contents = []
    with tarfile.open(fileobj=io.BytesIO(_get(archive.address))) as tar:
        for file in archive.files:
            member = tar.extractfile(f"{archive.inner}/{file.name}")
            contents.append(member.read() if member is not None else b"")
    return contents


def _get(address: str) -> bytes:
    with urlopen(address, timeout=DOWNLOAD_TIMEOUT_S) as response:
        content: bytes = response.read()
    return content


def _write(home: Path, archive: Archive, contents: Sequence[bytes]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".fetch-", dir=home) as unfinished:
        for file, content in zip(archive.files, contents, strict=True):
            (Path(unfinished) / file.name).write_bytes(content)
        for file in archive.files:
            (Path(unfinished) / file.name).replace(home / file.name)
