"""Audits of all methods, models and calibrations, stored one by one so that a stopped sweep can be continued."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from fedmest import __version__
from fedmest.auditing.attack import CLIP_NORM
from fedmest.auditing.game import audit
from fedmest.auditing.result import AuditResult
from fedmest.auditing.scenarios import NETWORK, small_network
from fedmest.core.choices import CALIBRATIONS
from fedmest.methods import METHODS, method_named
from fedmest.models import MODELS, model_named

NETWORK_BOUND = 0.01  # clip norm that is given to networks under the paper's calibration
FEWER_GAMES, MIN_GAMES = 4, 100  # networks ask sites one after another: a quarter of the games, but no fewer than these


@dataclass(frozen=True)
class AuditCase:
    """One audit of a sweep.

    Parameters
    ----------
    method, model, calibration : str
        What is attacked, by name.
    settings : dict
        Settings of `fit` that differ from the defaults.
    """

    method: str
    model: str
    calibration: str
    settings: dict[str, Any]

    def audit(self, mu: float, games: int, options: dict[str, Any], **more: Any) -> AuditResult:
        """Run the audit; networks get fewer games and their method's quick options.

        Parameters
        ----------
        mu : float
            The claim to attack.
        games : int
            Number of games that are judged.
        options : dict
            Options of the method.
        **more
            Further arguments of `fedmest.audit`.

        Returns
        -------
        AuditResult
        """
        if self.model == NETWORK:
            games = max(games // FEWER_GAMES, MIN_GAMES)
            options = {**METHODS[self.method].quick_options, **options}
        return audit(self.method, self.model, mu, calibration=self.calibration, games=games, settings=self.settings,
                     **more, **options)  # fmt: skip


def cases(
    methods: Sequence[str] = (),
    models: Sequence[str] = (),
    calibrations: Sequence[str] = CALIBRATIONS,
    settings: dict[str, Any] | None = None,
) -> Iterator[AuditCase]:
    """Every private method with every model that it supports, at its defaults and in variants worth an audit.

    The variants are a uniform budget schedule, in which no later step hides an earlier one, and, under the paper's
    calibration, a clip norm that is given. Networks are included where torch is installed.

    Parameters
    ----------
    methods, models, calibrations : sequence of str
        Names; empty means all.
    settings : dict, optional
        Audit with these settings of `fit` instead of the variants.

    Yields
    ------
    AuditCase
    """
    regressions = [name for name in MODELS if model_named(name).has_coefficients]
    every = [*regressions, NETWORK] if find_spec("torch") is not None else regressions
    for name, model, calibration in product(methods or METHODS, models or every, calibrations):
        kind = method_named(name)
        known = small_network() if model == NETWORK else model_named(model)
        if not kind.private or not kind.supports(known) or (calibration == "paper" and not kind.in_paper):
            continue
        variants: list[dict[str, Any]] = [{}]
        if calibration == "paper":
            variants.append({"clip_norm": NETWORK_BOUND if model == NETWORK else CLIP_NORM})
        elif known.has_coefficients and "eta" in getattr(kind, "__dataclass_fields__", {}):  # it has steps to schedule
            variants.append({"budget_schedule": "uniform"})
        for variant in [settings] if settings else variants:
            yield AuditCase(name, model, calibration, variant)


def audit_all(
    todo: Sequence[AuditCase],
    options: dict[str, dict[str, Any]],
    file: Path | None = None,
    *,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> tuple[list[dict[str, Any]], AuditResult | None]:
    """Run audits, or read them from a file that holds the same ones.

    Parameters
    ----------
    todo : sequence of AuditCase
        The audits.
    options : dict
        Options of each method, by its id.
    file : Path, optional
        JSON lines, one per finished audit; read first, then appended to.
    fresh : bool, default False
        Run all audits even if the file holds them.
    progress : callable, optional
        Called with the numbers of finished and of all audits.
    **settings
        mu, games and further arguments of `fedmest.audit`.

    Returns
    -------
    entries : list of dict
        What was asked and found, one per case.
    last : AuditResult or None
        The last audit that was run and not read.
    """
    stored = [] if fresh else _stored(file)
    entries: list[dict[str, Any]] = []
    last = None
    for case in todo:
        own = options[case.method]
        facts = json.loads(json.dumps({**vars(case), **settings, "options": own, "version": __version__}))
        entry = next((found for asked, found in stored if asked == facts), None)
        if entry is None:
            last = case.audit(options=own, **settings)
            entry = {**facts, **last.to_dict()}
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"facts": facts, "found": entry}) + "\n")
        entries.append(entry)
        if progress is not None:
            progress(len(entries), len(todo))
    return entries, last


def _stored(file: Path | None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What earlier calls asked and found."""
    if file is None or not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            found.append((entry["facts"], entry["found"]))
        except (ValueError, KeyError, TypeError):  # cut short by a crash, or not ours
            continue
    return found
