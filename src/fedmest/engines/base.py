"""What an engine must do for a run. Methods and queries do not know which one they have."""

from typing import Protocol

from fedmest.federation import Index
from fedmest.methods.base import Step
from fedmest.privacy.gdp import Array
from fedmest.queries import Ask
from fedmest.scaling import Scaling


class Engine(Protocol):
    noise_caveat: str  # what the noise of this engine does not cover; empty where it covers all

    def answer(self, number: int, step: Step, ask: Ask) -> tuple[Array, Index]:
        """Replies to round `number`, one row a site, and which of the step's sites they are, ascending."""

    def rescale(self, scaling: Scaling) -> None:
        """From now on features and target are scaled so."""

    def scaling_of_rows(self) -> Scaling:
        """Means and standard deviations of all rows, read off without paying."""

    def paper_bound(self, start: Array) -> float:
        """The paper's bound, read off all rows without paying."""
