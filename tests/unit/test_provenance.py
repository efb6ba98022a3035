"""What the digest of our code covers: whatever computes a cell, and nothing else."""

import re
import shutil
from pathlib import Path

import pytest

import fedmest
from fedmest.methods import METHODS
from fedmest.models import MODELS, model_named
from fedmest.studies.store import code_digest, import_closure, provenance

PACKAGE = Path(fedmest.__file__).parent


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "fedmest"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def closure(package: Path) -> set[str]:
    return {file.relative_to(package).as_posix() for file in import_closure(package)}


def digest_with(package: Path, name: str, text: str) -> str:
    """Of the code with another text in one of its files."""
    file = package / name
    before = file.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    try:
        return code_digest(package)
    finally:
        file.write_text(before, encoding="utf-8")


def test_the_digest_is_that_of_the_installed_code(copied: Path) -> None:
    assert provenance()["fedmest code"] == code_digest(PACKAGE) == code_digest(copied)


def test_the_closure_has_every_layer_that_computes_and_no_other() -> None:
    layers = {name.split("/")[0] for name in closure(PACKAGE)}
    assert layers == {"core", "privacy", "data", "models", "queries", "methods", "inference", "runs", "studies"}


def test_the_closure_has_every_method_and_model() -> None:
    modules = {kind.__module__ for kind in METHODS.values()}
    modules |= {type(model_named(name)).__module__ for name in MODELS}
    assert {module.removeprefix("fedmest.").replace(".", "/") + ".py" for module in modules} <= closure(PACKAGE)


def test_a_module_that_is_imported_inside_a_function_counts(copied: Path) -> None:
    (copied / "privacy" / "hidden.py").write_text("SHARE = 0.5\n")
    caller = copied / "privacy" / "budget.py"
    before, text = code_digest(copied), caller.read_text(encoding="utf-8")
    for line in ("from fedmest.privacy import hidden", "from fedmest.privacy.hidden import SHARE",
                 "import fedmest.privacy.hidden"):  # fmt: skip
        caller.write_text(f"{text}\n\ndef lazy():\n    {line}\n", encoding="utf-8")
        assert "privacy/hidden.py" in closure(copied)
        found = code_digest(copied)
        (copied / "privacy" / "hidden.py").write_text("SHARE = 0.25\n")
        assert len({before, found, code_digest(copied)}) == 3
        (copied / "privacy" / "hidden.py").write_text("SHARE = 0.5\n")
    caller.write_text(text, encoding="utf-8")
    assert code_digest(copied) == before


def test_a_changed_constant_changes_the_digest_wherever_it_is(copied: Path) -> None:
    """Every module of the closure, by the first number in it that a name is given to."""
    before, changed = code_digest(copied), set()
    for name in sorted(closure(copied)):
        text = (copied / name).read_text(encoding="utf-8")
        other, count = re.subn(r"^([A-Z_]+(?:, [A-Z_]+)* = .*?)(\d)", lambda m: m[1] + str((int(m[2]) + 1) % 10), text,
                               count=1, flags=re.MULTILINE)  # fmt: skip
        if not count:
            other = f"{text}\nADDED = 1\n"
        assert digest_with(copied, name, other) != before, name
        changed |= {name} if count else set()
    assert {"runs/spec.py", "inference/covariance.py", "privacy/budget.py"} <= changed
    assert code_digest(copied) == before


def test_neither_comments_nor_docstrings_nor_layout_count(copied: Path) -> None:
    text = (copied / "studies/cells.py").read_text(encoding="utf-8")
    first = text.index('"""', 3)
    other = f'"""Another docstring.{text[first:]}\n# a comment\n'.replace("\n\n", "\n\n\n")
    assert digest_with(copied, "studies/cells.py", other) == code_digest(copied)


@pytest.mark.parametrize(
    "name", ["interface/pages.py", "interface/tables.py", "site/vault.py", "server/coordinator.py", "auditing/game.py",
             "studies/claims.py", "studies/definitions/equal.py"],
)  # fmt: skip
def test_what_computes_no_cell_does_not_count(name: str, copied: Path) -> None:
    text = (copied / name).read_text(encoding="utf-8")
    assert digest_with(copied, name, text + "\nADDED = 1\n") == code_digest(copied)
