"""Traffic of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """Traffic of one round, over all sites that answered.

    Parameters
    ----------
    query : str
        Name of the query.
    sites : int
        Sites that answered.
    floats_up, floats_down : int
        Floats sent by the sites, and to them.
    """

    query: str
    sites: int
    floats_up: int
    floats_down: int


@dataclass(frozen=True)
class Communication:
    """Traffic of a run. Floats are 8 bytes.

    Parameters
    ----------
    by_round : tuple of Round
        Traffic of each round.
    """

    by_round: tuple[Round, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.by_round)

    @property
    def floats_up(self) -> int:
        """Floats sent by the sites."""
        return sum(r.floats_up for r in self.by_round)

    @property
    def floats_down(self) -> int:
        """Floats sent to the sites."""
        return sum(r.floats_down for r in self.by_round)

    @property
    def bytes(self) -> int:
        """Bytes sent, in both directions."""
        return 8 * (self.floats_up + self.floats_down)
