"""The house: imports point one way, modules are small, and nobody works out what a step or a query says itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "fedmest"
LAYERS = (
    "core", "privacy", "data", "models", "queries", "methods", "inference", "runs", "site", "server", "auditing",
    "studies", "interface",
)  # fmt: skip
RENDERS_ITSELF = {("runs.result", "interface"), ("runs.comparison", "interface")}  # to_html; nothing else points up
MAX_LINES = 400


def modules() -> dict[str, ast.Module]:
    found = {}
    for file in sorted(SRC.rglob("*.py")):
        parts = file.relative_to(SRC).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").rstrip(".")] = ast.parse(file.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def imports() -> Iterator[tuple[str, str]]:
    """Pairs of our own modules, also of imports inside functions and under TYPE_CHECKING."""
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedmest":
                base = str(node.module).removeprefix("fedmest").lstrip(".")
                names = [f"{base}.{a.name}".lstrip(".") for a in node.names]
                names = [name if name in MODULES else base for name in names]
            elif isinstance(node, ast.Import):
                names = [a.name.removeprefix("fedmest.") for a in node.names if a.name.startswith("fedmest.")]
            yield from ((module, name) for name in names if name and name != module)


def head(module: str) -> str:
    return module.split(".")[0]


def test_imports_point_one_way() -> None:
    wrong = [
        (module, target)
        for module, target in imports()
        if module and LAYERS.index(head(target)) > LAYERS.index(head(module))
        and (module, head(target)) not in RENDERS_ITSELF
    ]  # fmt: skip
    assert wrong == []


def test_no_module_imports_itself_in_a_circle() -> None:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, target in imports():
        if module and (module, head(target)) not in RENDERS_ITSELF:
            edges[module].add(target)
    while removable := [module for module, targets in edges.items() if not targets]:
        for module in removable:
            del edges[module]
        for targets in edges.values():
            targets.difference_update(removable)
    assert edges == {}, f"a circle among {sorted(edges)}"


def test_the_top_of_the_package_is_its_layers() -> None:
    entries = {path.name for path in SRC.iterdir() if not path.name.startswith("__")} - {"py.typed"}
    assert entries == set(LAYERS)
    assert len(entries) <= 13


@pytest.mark.parametrize("file", sorted(SRC.rglob("*.py")), ids=lambda file: str(file.relative_to(SRC)))
def test_a_module_is_small_or_says_why_it_is_one_thing(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if text.count("\n") > MAX_LINES:
        assert "one thing" in (ast.get_docstring(ast.parse(text)) or ""), f"{text.count(chr(10))} lines"


def test_nobody_asks_for_the_class_of_a_query_outside_queries_and_methods() -> None:
    """What a query yields it says itself (`roles`, `uses`); a phase, a vault or an audit reads that."""
    queries = {
        node.name
        for module, tree in MODULES.items() if head(module) == "queries"
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    found = [
        (module, node.lineno)
        for module, tree in MODULES.items() if head(module) not in ("queries", "methods")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        for name in ast.walk(node.args[1])
        if isinstance(name, ast.Name) and name.id in queries
    ]  # fmt: skip
    assert found == []


def test_nobody_finds_a_phase_by_counting_rounds() -> None:
    """No list of one phase's steps beside the schedule, and no number of a round compared with a length of one."""
    found = []
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"(scaling|bound|method|error)_steps", node.attr):
                found.append((module, node.lineno, node.attr))
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                counted = any(
                    isinstance(side, ast.Call) and getattr(side.func, "id", "") == "len"
                    and "schedule.of" in ast.unparse(side)
                    for side in sides
                )  # fmt: skip
                if counted:
                    found.append((module, node.lineno, ast.unparse(node)))
    assert found == []


def test_the_picture_of_the_house_is_that_of_its_imports() -> None:
    """`python docs/images/house.py` draws it anew."""
    names: dict[str, object] = {"__name__": "house", "__file__": str(ROOT / "docs" / "images" / "house.py")}
    exec(compile((ROOT / "docs/images/house.py").read_text(encoding="utf-8"), "house.py", "exec"), names)
    draw = names["draw"]
    assert callable(draw)
    assert draw() == (ROOT / "docs/images/house.svg").read_text(encoding="utf-8")
    assert tuple(names["LAYERS"]) == LAYERS  # type: ignore[arg-type]
