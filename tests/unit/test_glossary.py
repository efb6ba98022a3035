"""The field's words: none of the old ones is left in sources, templates, pages, help texts or documentation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmest.interface.cli.main import app

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".toml", ".sh", ".conf", ".yml"}
GENERATED = ("docs/studies", "docs/real-data")  # by studies, which write them anew when they are run again
# old word -> the one to use; the blueprint's glossary, and words that nobody in the field uses
OLD = {
    r"\bWishes\b": "Settings", r"\bRoster\b": "PublicFacts", r"\bcarry_out\b": "execute",
    r"\b(Local|Remote)?Engine\b": "Backend", r"\brun_study\b": "Coordinator.run", r"\bseed_word\b": "derive_seed",
    r"\bTerms\b": "RunSpec", r"\bAdvice\b": "Plan", r"\bHeadParts\b": "LastLayerParts",
    r"\bUnearned\b|\bearns_errors\b": "NoStandardErrors, has_intervals", r"\bhow_sure\b": "cov_description",
    r"\bNotTraced\b|\buntraced\b": "NoNoiseModel, noise_model_gap", r"\bsamples_sites\b": "supports_client_sampling",
    r"\btakes_call\b|\bkeep_log\b": "with_fit_options, configure_logging",
    r"\b(LARGEST|MOST|FEWEST|LONGEST)_[A-Z]": "MAX_, MIN_", r"\bPATIENCE\b": "READ_TIMEOUT_S and the like",
    r"\bthird_party_with\b": "third_party_mu(colluders)", r"\b(delta|epsilon|mu)_of\b": "gdp_delta and the like",
    r"\bcurvature_cap\b": "curvature_upper_bound", r"\bsite_thetas\b": "site_params",
    r"\bbound_quantile\b": "clip_quantile",
    r"\bTooFewSites\b": "QuorumError", r"\bset_classes\b": "with_classes",
    r"\bmend(s|ed|ing)?\b": "fix", r"\bwish(es|ed)?\b": "setting", r"\brehears\w*": "simulation with seeded noise",
    r"\b(bought|buys?|buying)\b": "private, estimate privately", r"\bfaults?\b": "error", r"\bso many\b": "the number",
    r"\b(a line|floats?|bytes|numbers) an? (round|site|step|row|class|release)\b": "per",
    r"\ba (site|round) sends\b": "a site releases", r"\bprices?\b|\bpriced\b": "cost", r"\bearn(s|ed)?\b": "available",
}  # fmt: skip
ALLOWED = {  # where a word means something else
    ("docs/ethics-board.md", "price"),
}


def texts() -> Iterator[tuple[str, str]]:
    files = [
        *(ROOT / "src").rglob("*"), *(ROOT / "docs").rglob("*"), ROOT / "README.md", ROOT / "mkdocs.yml",
    ]  # fmt: skip
    for file in sorted(files):
        name = file.relative_to(ROOT).as_posix()
        if file.suffix in SUFFIXES and file.is_file() and ".egg-info" not in name and not name.startswith(GENERATED):
            yield name, file.read_text(encoding="utf-8")


@pytest.mark.parametrize("old", OLD)
def test_no_old_word_is_left(old: str) -> None:
    found = [
        f"{name}:{text[: match.start()].count(chr(10)) + 1}: {match[0]}"
        for name, text in texts()
        for match in re.finditer(old, text)
        if (name, match[0]) not in ALLOWED
    ]
    assert not found, f"use {OLD[old]}: " + "; ".join(found[:20])


COMMANDS = [
    [], ["fit"], ["compare"], ["plan"], ["audit"], ["demo"], ["explore"], ["methods"], ["reproduce"], ["data"],
    ["site"], ["site", "serve"], ["ledger"], ["ledger", "show"], ["deploy"], ["deploy", "init"], ["deploy", "run"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "fedmest")
def test_help_texts_use_the_fields_words(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0, shown.output
    found = [match[0] for old in OLD for match in re.finditer(old, shown.output)]
    assert not found
