"""A run that a site agreed to take part in: its spec, this site's place in it, and what was pinned."""

from dataclasses import dataclass, field

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.queries.schedule import Step
from fedmest.runs.spec import RunSpec


class Refused(Exception):
    """Why a request is not answered; the server reads it, so no row has a part in it."""


@dataclass
class AgreedRun:
    """A run that this site agreed to take part in.

    Attributes
    ----------
    id : str
    text : str
        The spec as it came.
    spec : RunSpec
    place : int
        Of this site among the run's.
    split_seed : int
        Which rows are in which half.
    seed64 : int or None
        Of simulated noise; None: noise from the operating system.
    pins : dict
        Public values, once used: they stay what they were until a step sets them again.
    recorded : bool
        In the ledger.
    """

    id: str
    text: str
    spec: RunSpec
    place: int
    split_seed: int
    seed64: int | None
    pins: dict[str, str] = field(default_factory=dict)
    recorded: bool = True

    def step(self, number: int, query: str) -> tuple[Step, FloatArray]:
        """The step that is due in a round, and this site's costs in it."""
        steps = self.spec.schedule.steps
        if number >= len(steps):
            raise Refused(f"round {number + 1}: the schedule has {len(steps)} rounds")
        step = steps[number]
        if step.query.name != query:
            raise Refused(f"round {number + 1} is for the query {step.query.name!r}, not for {query!r}")
        places = np.flatnonzero(step.sites == self.place)
        if len(places) == 0:
            raise Refused(f"round {number + 1}: this site does not take part in it")
        return step, step.mus if step.mus.shape[1] == 1 else step.mus[:, places]
