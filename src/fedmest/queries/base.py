"""What a site can be asked. A query computes on rows, states its own sensitivity, and alone adds noise to data."""

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.data.packing import Rows
from fedmest.models import Clipping, Model
from fedmest.privacy.noise import Keys, Noise

MAX_PARAM = 1e6  # beyond, rounding would swallow the noise: no site answers there


class Role(Enum):
    """What a part of a reply is, for standard errors and predictions."""

    GRADIENT = "mean gradient"
    CURVATURE = "mean curvature"
    SCORE_MOMENTS = "second moments of scores"
    RECORD_MOMENTS = "second moments of features and target"
    FEATURE_MOMENTS = "second moments of features"
    ESTIMATE = "a site's own estimate"
    NEWTON_STEP = "a site's own Newton step"
    COUNTS = "counts of a histogram"


@dataclass(frozen=True)
class Release:
    """One noisy value that leaves a site.

    Parameters
    ----------
    what : str
        What it is, for the ledger and the report.
    part : {"all", "first", "second"}
        Which half of the site's rows it is computed from.
    """

    what: str
    part: str = "all"


@dataclass(frozen=True)
class QueryInputs:
    """What the server sends along with a query. All of it is public; none of it can lower the noise.

    Parameters
    ----------
    params : FloatArray
        Coefficients (outputs, d) at which the query is answered.
    clipping : Clipping
        How rows are clipped: what the query makes of the run's clipping.
    penalty : FloatArray
        Ridge on each coefficient.
    drifts : FloatArray or None
        Added to every local gradient; one for each site where it has three dimensions.
    edges : FloatArray or None
        Bin edges of histograms, one row per histogram.
    """

    params: FloatArray
    clipping: Clipping
    penalty: FloatArray
    drifts: FloatArray | None = None
    edges: FloatArray | None = None


@dataclass(frozen=True)
class SiteData:
    """All that a site's code can see: rows (and their random halves), and the model.

    Parameters
    ----------
    model : Model
        The model.
    rows : Rows
        Rows of the sites.
    split_seed : int
        Seed of the random halves.
    keys : Keys, optional
        Keys of the sites, for the halves; by default the sites' numbers.
    """

    model: Model
    rows: Rows
    split_seed: int = 0
    keys: Keys | None = None
    _halves: dict[str, Rows] = field(default_factory=dict, repr=False)

    def part(self, name: str) -> Rows:
        """Rows that a release reads.

        Parameters
        ----------
        name : {"all", "first", "second"}
            All rows, or one of the random halves.

        Returns
        -------
        Rows
        """
        if name == "all":
            return self.rows
        if not self._halves:
            keys = self.keys if self.keys is not None else np.arange(len(self.rows.sizes), dtype=np.uint64)
            self._halves["first"], self._halves["second"] = self.rows.halves(self.split_seed, keys)
        return self._halves[name]


class Query:
    """One thing that a site can be asked.

    Attributes
    ----------
    name : str
        Its name in the schedule, the ledger and the report.
    roles : tuple of Role
        What the parts of a reply are, in order.
    inputs : frozenset of str
        What the server sends with it, beside public values of the run: `params`, `edges`.
    additive_noise : bool
        Whether the reply is the noisy mean itself (nothing is computed from it at the site), so that weighted sums of
        replies carry Gaussian noise of known size.
    unproved : tuple of str
        What is not proved, in plain words.

    Notes
    -----
    `releases` lists what leaves the site; the schedule gives each its own cost mu. `sensitivity` is, for each release
    and each site, the L2 distance that replacing one row can move it; noise follows from that and the cost alone.
    """

    name: ClassVar[str]
    inputs: ClassVar[frozenset[str]] = frozenset({"params"})
    additive_noise: ClassVar[bool] = False
    unproved: ClassVar[tuple[str, ...]] = ()

    @property
    def roles(self) -> tuple[Role, ...]:
        """What the parts of a reply are, in order."""
        raise NotImplementedError

    def releases(self) -> tuple[Release, ...]:
        """What leaves a site, in order; each release has a cost of its own."""
        raise NotImplementedError

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        """L2 sensitivity of each release at each site.

        Parameters
        ----------
        n : FloatArray
            Rows of each site; all of them, also for releases on half the rows.
        clipping : Clipping
            How rows are clipped.

        Returns
        -------
        FloatArray
            (releases, sites): how far replacing one row can move the value.
        """
        raise NotImplementedError

    def clipping(self, clipping: Clipping, model: Model) -> Clipping:
        """Clipping that this query works with.

        Parameters
        ----------
        clipping : Clipping
            Clipping of the run.
        model : Model
            The model.

        Returns
        -------
        Clipping
        """
        return clipping

    def part_sizes(self, size: int, columns: int) -> tuple[int, ...]:
        """Number of floats in each part of a reply.

        Parameters
        ----------
        size : int
            Number of parameters.
        columns : int
            Columns of a row.

        Returns
        -------
        tuple of int
        """
        return (size,)

    def reply_size(self, size: int, columns: int) -> int:
        """Number of floats in one site's reply.

        Parameters
        ----------
        size : int
            Number of parameters.
        columns : int
            Columns of a row.

        Returns
        -------
        int
        """
        return sum(self.part_sizes(size, columns))

    def edges_shape(self) -> tuple[int, int]:
        """Shape of the bin edges that are sent with it."""
        return (0, 0)

    def sample_edges(self) -> FloatArray | None:
        """Bin edges like those of a run, for use without a run; None where none are sent."""
        return None

    def by_role(self, reply: FloatArray, size: int, columns: int) -> dict[Role, FloatArray]:
        """Parts of a reply, or of a weighted sum of replies, by their roles.

        Parameters
        ----------
        reply : FloatArray
            The numbers, in the last dimension.
        size : int
            Number of parameters.
        columns : int
            Columns of a row.

        Returns
        -------
        dict of Role to FloatArray
        """
        ends = np.cumsum(self.part_sizes(size, columns))
        return dict(zip(self.roles, np.split(reply, ends[:-1], axis=-1), strict=True))

    def noise_sds(self, n: FloatArray, clipping: Clipping, mus: FloatArray) -> FloatArray:
        """Standard deviations of the noise.

        Parameters
        ----------
        n : FloatArray
            Rows of each site.
        clipping : Clipping
            How rows are clipped.
        mus : FloatArray
            Costs (releases, sites or 1); infinite without privacy.

        Returns
        -------
        FloatArray
            (releases, sites): sensitivity over cost.

        Raises
        ------
        ValueError
            If a cost is not positive, or no finite noise suffices.
        """
        if not (mus > 0).all():  # NaN must not pass for "no noise"
            raise ValueError(f"{self.name}: the cost of a release must be a positive number")
        if np.isinf(mus).all():
            return np.zeros((len(self.releases()), len(n)))
        sds = self.sensitivity(n, clipping) / mus
        if not np.isfinite(sds).all():
            raise ValueError(f"{self.name}: no finite noise for a clip norm of {clipping.bound}; nothing is released")
        return sds

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        """Replies of sites, noise included. The only method of a query that sees rows.

        Parameters
        ----------
        data : SiteData
            Rows and model.
        sites : IntArray
            Sites that reply.
        inputs : QueryInputs
            What the server sent.
        mus : FloatArray
            Costs (releases, sites or 1).
        noise : Noise
            Source of the noise.

        Returns
        -------
        FloatArray
            (sites, floats).
        """
        raise NotImplementedError


def half_size(n: FloatArray, part: str) -> FloatArray:
    """Rows of a site of n in a part (the first half takes the odd row), at least one."""
    sizes = {"all": n, "first": np.ceil(n / 2), "second": np.floor(n / 2)}[part]
    return np.asarray(np.maximum(sizes, 1.0))
