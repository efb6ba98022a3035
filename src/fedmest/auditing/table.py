"""The table of all audits, which goes on where it was stopped."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from fedmest import __version__
from fedmest.auditing.attack import BOUND
from fedmest.auditing.found import Audit
from fedmest.auditing.game import audit
from fedmest.auditing.scenes import NETWORK, small_network
from fedmest.methods import CALIBRATIONS, METHODS, method_named
from fedmest.models import MODELS, model_named

SHORT = {"K": 2, "R": 1, "K1": 2, "K2": 2, "cycles": 1}  # options of audits of networks


@dataclass(frozen=True)
class Case:
    """A line in the table of all audits."""

    method: str
    model: str
    calibration: str
    settings: dict[str, Any]

    def audit(self, mu: float, games: int, options: dict[str, Any], **more: Any) -> Audit:
        """With fewer games and local steps for networks, of which sites are asked one after another."""
        if self.model == NETWORK:
            known = getattr(METHODS[self.method], "__dataclass_fields__", {})
            games = max(games // 4, 100)
            options = {**{k: v for k, v in SHORT.items() if k in known}, **options}
        return audit(self.method, self.model, mu, calibration=self.calibration, games=games, settings=self.settings,
                     **more, **options)  # fmt: skip


def cases(
    methods: Sequence[str] = (), models: Sequence[str] = (), calibrations: Sequence[str] = CALIBRATIONS,
    settings: dict[str, Any] | None = None,
) -> Iterator[Case]:  # fmt: skip
    """Every method with every model that it takes, as it runs by default, and with what else is worth a look.

    A uniform schedule, of which nothing is hidden by later steps; the paper's calibration with a bound that is told.
    Networks only where torch is installed.
    """
    every = [name for name in MODELS if model_named(name).linear] + [NETWORK] * (find_spec("torch") is not None)
    for name, model, calibration in product(methods or METHODS, models or every, calibrations):
        kind = method_named(name)
        known = small_network() if model == NETWORK else model_named(model)
        if not kind.private or not kind.takes(known) or (calibration == "paper" and not kind.in_paper):
            continue
        variants: list[dict[str, Any]] = [{}]
        if calibration == "paper":
            variants.append({"bound": 0.01 if model == NETWORK else BOUND})
        elif known.linear and "eta" in getattr(kind, "__dataclass_fields__", {}):
            variants.append({"schedule": "uniform"})
        for variant in [settings] if settings else variants:
            yield Case(name, model, calibration, variant)


def audit_all(
    todo: Sequence[Case], options: dict[str, dict[str, Any]], file: Path | None = None, *, anew: bool = False,
    progress: Callable[[int, int], None] | None = None, **settings: Any,
) -> tuple[list[dict[str, Any]], Audit | None]:  # fmt: skip
    """What every case finds, from the file where it holds the same case (unless `anew`); and the last audit made.

    options: of each method. settings: mu, games and what else `audit` takes.
    """
    kept = [] if anew else _kept(file)
    entries: list[dict[str, Any]] = []
    found = None
    for case in todo:
        own = options[case.method]
        facts = json.loads(json.dumps({**vars(case), **settings, "options": own, "version": __version__}))
        entry = next((found for asked, found in kept if asked == facts), None)
        if entry is None:
            found = case.audit(options=own, **settings)
            entry = {**facts, **found.as_dict()}
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"facts": facts, "found": entry}) + "\n")
        entries.append(entry)
        if progress is not None:
            progress(len(entries), len(todo))
    return entries, found


def _kept(file: Path | None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
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
