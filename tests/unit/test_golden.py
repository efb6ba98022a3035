"""Seeded fits, vaults, plans, studies and audits give the numbers of golden.json, to the last bit; see golden.py."""

import math
from importlib.util import find_spec

import pytest

import golden

MOST_LINES = 40


@pytest.mark.parametrize("group", golden.GROUPS)
def test_numbers_are_what_they_were(group: str) -> None:
    if group == "networks":
        if find_spec("torch") is None:
            pytest.skip("networks need torch, an optional extra")
        if other := golden.other_tools(golden.recorded()["tools"], group):
            pytest.skip(f"numbers of networks depend on the tools: {'; '.join(other)}")
    lines = golden.changes(group)
    more = [f"... and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    assert not lines, "\n".join([f"{len(lines)} numbers are not what they were:", *lines[:MOST_LINES], *more])


def test_bits_are_compared_and_not_just_digits() -> None:
    """Skipped, to be seen, where the tools are others than those of the file."""
    if other := golden.other_tools(golden.recorded()["tools"]):
        pytest.skip(f"compared to {golden.TOLERANCE:g} only: {'; '.join(other)}")


def test_the_file_holds_every_case_and_no_other() -> None:
    names = [case["id"] for case in golden.CASES]
    assert len(set(names)) == len(names)
    assert set(golden.recorded()["cases"]) == set(names)


def test_every_method_and_setting_is_among_the_cases() -> None:
    assert set(golden.METHODS.values()) == golden.all_methods()
    assert {case["method"] for case in golden.CASES if "method" in case} == {*golden.METHODS, golden.AUTO}
    assert {name for case in golden.CASES for name in case.get("settings", {})} == set(golden.SETTINGS)


@pytest.mark.parametrize(
    ("new", "exact", "said"),
    [
        ({"theta": golden.numbers([1.0, math.nextafter(2.0, 3)])}, True, "relative difference 2.2e-16"),
        ({"theta": golden.numbers([1.0, 2.0 + 1e-8])}, False, "relative difference 5e-09"),
        ({"theta": golden.numbers([1.0, 2.0 + 1e-12]), "all": "~0000 aabb"}, False, None),
        ({"all": "~0000 aabd"}, True, "(from number 1 on)"),
        ({"word": "=13"}, False, "was =12, is =13"),
        ({"rounds": 4}, False, "was 3, is 4"),
        ({"extra": 4}, False, "'extra' is new"),
    ],
)
def test_a_change_is_said_with_its_size(new: dict[str, object], exact: bool, said: str | None) -> None:
    old = {"theta": golden.numbers([1.0, 2.0]), "all": "~1111 aabb", "word": "=12", "rounds": 3}
    assert golden.differences("case", old, old, exact) == []
    lines = golden.differences("case", old, {**old, **new}, exact)
    assert (len(lines), True) == ((1, said in lines[0]) if said else (0, True)), lines
