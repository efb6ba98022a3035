"""Data sets: the real files where FEDMEST_DATA names a folder that has them, and tiny ones of the same formats."""

import gzip
import hashlib
import io
import json
import lzma
import os
import socket
import struct
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

import fedmest as fm
from conftest import one_line
from fedmest.data import datasets as data
from fedmest.interface.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore:A network error occurred")

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
REAL = os.environ.get(data.VARIABLE)  # before `clean` takes it away


def real(name: str) -> pytest.MarkDecorator:
    there = REAL is not None and not data.missing(name, REAL)
    return pytest.mark.skipif(not there, reason=f"needs {name}: let {data.VARIABLE} name a folder that has it")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, no folder named, and no network."""

    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "fedmest"


class Tiny:
    """A data set of few random images in the official formats, which stands in for the official one."""

    def __init__(self, name: str, rows: Callable[[data.File], int]) -> None:
        official = data.ARCHIVES[name]
        files = tuple(replace(file, rows=rows(file)) for file in official.files)
        train = files[0].rows if name == "mnist" else sum(file.rows for file in files[:-1])
        archive = replace(official, files=files, n_train=train)
        rng = np.random.default_rng(7)
        self.pixels = rng.integers(0, 256, (archive.rows, np.prod(archive.shape)))
        self.labels = np.arange(archive.rows) % 10
        self.contents = dict(zip([f.name for f in files], archive.encode(self.pixels, self.labels), strict=True))
        sums = [hashlib.sha256(content).hexdigest() for content in self.contents.values()]
        self.archive = replace(
            archive, files=tuple(replace(file, sha256=s) for file, s in zip(files, sums, strict=True))
        )

    def write(self, place: Path, suffix: str = "") -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (place / (name + suffix)).write_bytes(PACK[suffix](content))

    def is_in(self, folder: Path | None = None) -> bool:
        images = data.load(self.archive.name, folder)
        assert images.pixels.dtype == np.uint8
        assert images.labels.dtype == np.int64
        assert images.shape == self.archive.shape
        assert images.n_train == self.archive.n_train
        return bool((images.pixels == self.pixels).all() and (images.labels == self.labels).all())


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    tiny = Tiny("mnist", lambda file: 7 if file.name.startswith("train") else 5)
    monkeypatch.setitem(data.ARCHIVES, "mnist", tiny.archive)
    return tiny


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    tiny = Tiny("cifar10", lambda _: 3)
    monkeypatch.setitem(data.ARCHIVES, "cifar10", tiny.archive)
    return tiny


def everything_in(folder: Path) -> list[Path]:
    return list(folder.parent.rglob("*"))


# -- the real files ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images() -> data.Images:
    return data.load("mnist", REAL)


@real("mnist")
def test_mnist_is_mnist(images: data.Images) -> None:
    assert (images.pixels.shape, images.shape, images.n_train) == ((70_000, 784), (28, 28), 60_000)
    train, test = np.split(images.labels, [images.n_train])
    assert np.bincount(train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    share = np.bincount(images.pixels[: images.n_train].ravel(), minlength=256) / (60_000 * 784)
    grey = np.arange(256) / 255
    mean = share @ grey
    assert (mean.round(4), np.sqrt(share @ (grey - mean) ** 2).round(4)) == (0.1307, 0.3081)
    assert images.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@real("mnist")
def test_rows_in_the_official_order_give_the_official_files_back(images: data.Images) -> None:
    archive = data.ARCHIVES["mnist"]
    contents = archive.encode(images.pixels, images.labels)
    assert [file.problem(content) for file, content in zip(archive.files, contents, strict=True)] == [""] * 4


@real("cifar10")
def test_a_batch_of_cifar10_is_of_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data.ARCHIVES["cifar10"]
    monkeypatch.setitem(data.ARCHIVES, "cifar10", replace(whole, files=whole.files[-1:], n_train=0))
    images = data.load("cifar10", REAL)
    assert images.pixels.shape == (10_000, 3072)
    assert np.bincount(images.labels).tolist() == [1000] * 10
    channels = images.pixels.mean(axis=0).reshape(3, -1).mean(axis=1) / 255
    assert channels.round(4).tolist() == [0.4942, 0.4851, 0.4504]
    assert images.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


@real("cifar10")
@pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "full", reason="unpacks for 10 s; HYPOTHESIS_PROFILE=full runs it"
)
def test_cifar10_is_cifar10() -> None:
    images = data.load("cifar10", REAL)
    assert (images.pixels.shape, images.shape, images.n_train) == ((60_000, 3072), (3, 32, 32), 50_000)
    train, test = np.split(images.labels, [images.n_train])
    assert np.bincount(train).tolist() == [5000] * 10
    assert np.bincount(test).tolist() == [1000] * 10
    channels = images.pixels[: images.n_train].reshape(-1, *images.shape).mean(axis=(0, 2, 3)) / 255
    assert channels.round(4).tolist() == [0.4914, 0.4822, 0.4465]


# -- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", PACK)
def test_mnist_is_read_plain_and_compressed(mnist: Tiny, folder: Path, suffix: str) -> None:
    mnist.write(folder / "mnist", suffix)
    assert mnist.is_in()
    assert (mnist.archive.n_train, mnist.archive.rows) == (7, 12)


@pytest.mark.parametrize("suffix", PACK)
def test_cifar10_is_read_plain_and_compressed(cifar: Tiny, folder: Path, suffix: str) -> None:
    cifar.write(folder / "cifar10", suffix)
    assert cifar.is_in()
    assert (cifar.archive.n_train, cifar.archive.rows) == (15, 18)


def test_an_idx_file_begins_with_what_it_holds(mnist: Tiny) -> None:
    images, labels, *_ = mnist.contents.values()
    assert struct.unpack_from(">IIII", images) == (0x803, 7, 28, 28)
    assert struct.unpack_from(">II", labels) == (0x801, 7)
    assert images[16:] == mnist.pixels[:7].astype(np.uint8).tobytes()


def test_a_row_of_cifar10_is_its_label_and_three_colours(cifar: Tiny) -> None:
    second = cifar.contents["data_batch_1.bin"][3073:6146]
    assert second[0] == cifar.labels[1]
    assert list(second[1:]) == cifar.pixels[1].tolist()


def test_the_folder_of_the_unpacked_archive_is_looked_into(cifar: Tiny, folder: Path) -> None:
    cifar.write(folder / "cifar10" / "cifar-10-batches-bin")
    assert cifar.is_in()


def test_the_variable_names_another_folder(mnist: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist.write(tmp_path / "elsewhere" / "mnist", ".gz")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "elsewhere"))
    assert data.data_folder() == tmp_path / "elsewhere"
    assert mnist.is_in()


def test_the_folder_is_the_users_cache_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.data_folder() == tmp_path / "cache" / "fedmest"
    for not_absolute in ("", "somewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", not_absolute)
        assert data.data_folder() == tmp_path / ".cache" / "fedmest"
    monkeypatch.setenv(data.VARIABLE, "~/sets")
    assert data.data_folder() == tmp_path / "sets"


# -- digits --------------------------------------------------------------------------------------------------


def test_digits_come_with_scikit_learn() -> None:
    images = data.load("digits")
    assert (images.pixels.shape, images.shape, images.n_train) == ((1797, 64), (8, 8), 1437)
    assert (images.pixels.dtype, images.labels.dtype) == (np.uint8, np.int64)
    assert (images.pixels.min(), images.pixels.max(), len(np.unique(images.pixels))) == (0, 255, 17)
    assert np.bincount(images.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not data.missing("digits")


def test_without_scikit_learn_digits_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(fm.InputError, match=r"pip install scikit-learn$"):
        data.load("digits")


# -- what is wrong with a file -------------------------------------------------------------------------------


def test_a_set_that_is_not_there_names_the_folder_and_both_ways_out(folder: Path) -> None:
    for name in ("mnist", "cifar10"):
        with pytest.raises(fm.InputError) as said:
            data.load(name)
        assert all(part in str(said.value) for part in (str(folder), f"'fedmest data fetch {name}'", "FEDMEST_DATA"))


def test_an_unknown_set_lists_those_there_are() -> None:
    for call in (data.load, data.fetch, data.missing):
        with pytest.raises(fm.InputError, match="the data sets are mnist, cifar10, digits"):
            call("imagenet")


def test_a_file_that_is_not_there_is_named(mnist: Tiny, folder: Path) -> None:
    mnist.write(folder / "mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert data.missing("mnist") == ["t10k-labels-idx1-ubyte"]
    with pytest.raises(fm.InputError, match=r"has no t10k-labels-idx1-ubyte .*fedmest data fetch mnist"):
        data.load("mnist")


def test_pickles_are_not_opened(cifar: Tiny, folder: Path) -> None:
    place = folder / "cifar10" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    (place / "data_batch_1").write_bytes(b"cos\nabort\n(tR.")  # would end this process
    with pytest.raises(fm.InputError, match="only the binary version is read"):
        data.load("cifar10")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        (IMAGES, lambda c: c[:-1], r"ends after 5,503 of 5,504 bytes"),
        (IMAGES, lambda c: c[:10], r"ends after 10 of 5,504 bytes"),
        (IMAGES, lambda c: b"", r"ends after 0 of 5,504 bytes"),
        (IMAGES, lambda c: c + b"0", r"has more than the 5,504 bytes"),
        (IMAGES, lambda c: b"\x1f\x8b" + c[2:], r"begins with 0x1f8b0803 and not with 0x00000803"),
        (IMAGES, lambda c: c[:7] + b"\x08" + c[8:], r"says it holds 8 x 28 x 28 values, not 7 x 28 x 28"),
        (IMAGES, lambda c: c[:-1] + bytes([c[-1] ^ 1]), r"has the right size but not the official checksum"),
        (LABELS, lambda c: c[:3] + b"\x03" + c[4:], r"begins with 0x00000803 and not with 0x00000801"),
        (LABELS, lambda c: c[:-2] + b"\x0a" + c[-1:], r"has label 10 in row 5; labels are 0 to 9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_spoilt_idx_file_is_named_with_what_is_wrong_and_the_way_out(
    mnist: Tiny, folder: Path, name: str, spoil: Callable[[bytes], bytes], said: str, suffix: str
) -> None:
    mnist.contents[name] = spoil(mnist.contents[name])
    mnist.write(folder / "mnist", suffix)
    with pytest.raises(fm.InputError, match=f"/mnist/{name}{suffix} {said}.*; run 'fedmest data fetch mnist', or "):
        data.load("mnist")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda c: c[:-3073], "ends after 6,146 of 9,219 bytes"),
        (lambda c: c + c, "has more than the 9,219 bytes"),
        (lambda c: c[:6146] + b"\xff" + c[6147:], "has label 255 in row 2"),
        (lambda c: c[::-1].translate(bytes(10) * 25 + bytes(6)), "has the right size but not the official checksum"),
    ],
)
def test_a_spoilt_batch_is_named_with_what_is_wrong(
    cifar: Tiny, folder: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    cifar.contents["data_batch_3.bin"] = spoil(cifar.contents["data_batch_3.bin"])
    cifar.write(folder / "cifar10", ".xz")
    with pytest.raises(fm.InputError, match=f"/cifar10/data_batch_3.bin.xz {said}"):
        data.load("cifar10")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize(
    "spoil",
    [lambda c: c[:-20], lambda c: c[:500] + bytes(50) + c[550:], lambda c: b"<html>not found</html>", lambda c: c[:3]],
    ids=["cut", "damaged", "a web page", "hardly begun"],
)
def test_a_compressed_file_that_cannot_be_unpacked_is_named(
    mnist: Tiny, folder: Path, suffix: str, spoil: Callable[[bytes], bytes]
) -> None:
    mnist.write(folder / "mnist", suffix)
    path = folder / "mnist" / (IMAGES + suffix)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(fm.InputError, match=f"{IMAGES}{suffix} is no {suffix} file, or damaged, or cut short; run"):
        data.load("mnist")


# -- fetching ------------------------------------------------------------------------------------------------


class Response(io.BytesIO):
    def info(self) -> dict[str, str]:
        return {}


def serve(monkeypatch: pytest.MonkeyPatch, pages: dict[str, bytes]) -> list[str]:
    """Answer for the internet, to scikit-learn's reader and to ours; collects what was asked for."""
    asked = []

    def urlopen(request: Any, timeout: float = 0) -> Response:
        address = getattr(request, "full_url", request)
        asked.append(address)
        if address not in pages:
            raise URLError("no route to host")
        return Response(pages[address])

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", urlopen)
    monkeypatch.setattr(data, "urlopen", urlopen)
    return asked


def openml(tiny: Tiny, number: int, rows: np.ndarray | None = None) -> dict[str, bytes]:
    """The five pages that scikit-learn reads."""
    name, features = tiny.archive.openml, tiny.pixels.shape[1]
    columns = [f"pixel{j}" for j in range(features)]
    order = np.arange(len(tiny.labels)) if rows is None else rows
    lines = [",".join(map(str, [*tiny.pixels[i], tiny.labels[i]])) for i in order]
    heads = [f"@ATTRIBUTE {c} INTEGER" for c in columns] + ["@ATTRIBUTE class {0,1,2,3,4,5,6,7,8,9}"]
    arff = "\n".join([f"@RELATION {name}", *heads, "@DATA", *lines, ""]).encode()
    address = f"https://www.openml.org/data/v1/download/{number}/{name}.arff"
    common = {"is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0"}
    entries = [{"name": c, "data_type": "numeric", "is_target": "false", **common} for c in columns]
    entries.append({"name": "class", "data_type": "nominal", "is_target": "true", **common})
    description = {
        "id": str(number), "name": name, "version": "1", "status": "active", "format": "ARFF", "url": address,
        "description": "", "file_id": "1", "md5_checksum": hashlib.md5(arff).hexdigest(),
    }  # fmt: skip
    api = "https://www.openml.org/api/v1/json/data"
    pages = {
        f"{api}/list/data_name/{name.lower()}/limit/2/data_version/1": {"data": {"dataset": [{"did": number}]}},
        f"{api}/{number}": {"data_set_description": description},
        f"{api}/features/{number}": {"data_features": {"feature": entries}},
        f"{api}/qualities/{number}": {
            "data_qualities": {"quality": [{"name": "NumberOfInstances", "value": str(len(order))}]}
        },
    }
    return {**{key: json.dumps(page).encode() for key, page in pages.items()}, address: arff}


def official(tiny: Tiny) -> dict[str, bytes]:
    address = tiny.archive.address
    if tiny.archive.name == "mnist":
        return {f"{address}/{name}.gz": gzip.compress(content) for name, content in tiny.contents.items()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in tiny.contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return {address: packed.getvalue()}


def test_mnist_is_fetched_from_openml(
    mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = serve(monkeypatch, openml(mnist, 554))
    assert main(["data", "fetch", "mnist"]) == 0
    assert capsys.readouterr().out == f"mnist is now in {folder / 'mnist'}\n"
    assert {path.name: path.read_bytes() for path in (folder / "mnist").iterdir()} == mnist.contents
    assert mnist.is_in()
    assert len(asked) == 5  # the rows once, not twice
    assert main(["data", "fetch", "mnist"]) == 0
    assert capsys.readouterr().out == f"mnist is already in {folder / 'mnist'}\n"
    assert len(asked) == 5


def test_mnist_is_fetched_from_a_mirror_where_openml_fails(
    mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, official(mnist))
    assert data.fetch("mnist")
    assert mnist.is_in()


def test_cifar10_is_fetched_from_its_archive(cifar: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, official(cifar))
    assert data.fetch("cifar10")
    assert cifar.is_in()
    assert len(asked) == 1
    assert sorted(path.name for path in (folder / "cifar10").iterdir()) == sorted(cifar.contents)


def test_cifar10_is_fetched_from_openml_where_the_archive_fails(
    cifar: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {cifar.archive.address: official(cifar)[cifar.archive.address][:-100]}
    serve(monkeypatch, {**pages, **openml(cifar, 40927)})
    assert data.fetch("cifar10")
    assert cifar.is_in()


def test_rows_that_are_fewer_or_in_another_order_are_not_taken_for_the_official_ones(
    mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, openml(mnist, 554, np.arange(12)[::-1]))
    with pytest.raises(data.DownloadError, match="OpenML: train-images-idx3-ubyte has the right size but not the off"):
        data.fetch("mnist")
    serve(monkeypatch, openml(mnist, 554, np.arange(11)))
    with pytest.raises(data.DownloadError, match="OpenML: it has 11 x 784 values"):
        data.fetch("mnist")
    assert everything_in(folder) == []


def test_a_damaged_copy_is_replaced(mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist.write(folder / "mnist", ".gz")
    (folder / "mnist" / f"{IMAGES}.gz").write_bytes(b"")
    serve(monkeypatch, official(mnist))
    assert data.fetch("mnist")
    assert mnist.is_in()


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_fetch_fails_in_one_line_and_leaves_nothing(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    err = one_line(capsys, main(["data", "fetch", name]), 1)
    assert f"{name} could not be fetched, and nothing was written" in err
    assert all(part in err for part in ("OpenML: ", data.ARCHIVES[name].address, str(folder / name)))
    assert list(scratch.iterdir()) == []
    assert everything_in(folder) == []


def test_an_interrupted_download_leaves_nothing(
    mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "_get", interrupt)
    assert "interrupted; nothing was written" in one_line(capsys, main(["data", "fetch", "mnist"]), 130)
    assert everything_in(folder) == []


def test_a_write_that_fails_half_way_leaves_no_file(
    mnist: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, official(mnist))
    write = Path.write_bytes

    def full_disk(path: Path, content: bytes) -> int:
        if "t10k" in path.name:
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert "No space left on device" in one_line(capsys, main(["data", "fetch", "mnist"]), 1)
    assert [path for path in everything_in(folder) if path.is_file()] == []


def test_a_folder_that_may_not_be_written_is_said_before_the_download(
    mnist: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = serve(monkeypatch, official(mnist))
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "a file"))
    assert "a file is not a folder; let FEDMEST_DATA name another" in one_line(capsys, main(["data", "fetch", "mnist"]))
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not be written" in one_line(capsys, main(["data", "fetch", "mnist"]))
    assert asked == []


# -- the command line ----------------------------------------------------------------------------------------


def test_where_shows_the_folder_and_what_it_holds(
    mnist: Tiny, cifar: Tiny, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "where"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder} (FEDMEST_DATA names another)"
    assert lines[1].split() == ["mnist", "absent;", "run", "'fedmest", "data", "fetch", "mnist'"]
    assert lines[3].split() == ["digits", "comes", "with", "scikit-learn"]
    mnist.write(folder / "mnist", ".gz")
    cifar.write(folder / "cifar10")
    (folder / "cifar10" / "test_batch.bin").unlink()
    monkeypatch.setenv(data.VARIABLE, str(folder))
    assert main(["data", "where"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder} (named by FEDMEST_DATA)"
    assert lines[1].split() == ["mnist", "present"]
    assert lines[2].split()[:2] == ["cifar10", "incomplete;"]
    assert main(["data", "where", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == {"folder": str(folder), "data_sets": {"mnist": "present", "cifar10": "incomplete"}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "missing command (try 'fedmest data --help')"),
        (["fetch"], "missing argument"),
        (["fetch", "imagenet"], "there is no data set 'imagenet'; the data sets are mnist, cifar10, digits"),
        (["fetch", "digits"], "digits comes with scikit-learn; there is nothing to fetch"),
        (["wehre"], "no such command 'wehre'"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in one_line(capsys, main(["data", *arguments]))
