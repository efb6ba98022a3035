"""Schedules: which queries are asked in which rounds, at what cost, written from public facts before a row is read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping, Model
from fedmest.privacy.budget import split
from fedmest.queries.base import Query


@dataclass(frozen=True)
class PublicContext:
    """Public facts that a schedule may depend on. It holds no row.

    Parameters
    ----------
    model : Model
        The model.
    sizes : IntArray
        Rows of each site.
    columns : int
        Columns of a row, the intercept's included.
    mu : float
        Budget of the steps that are to be written.
    calibration, clip_rule, budget_schedule, aggregation_weights : str
        As in `Settings`.
    weight_constant, participation : float
        As in `Settings`.
    seed : int
        Seed of public draws (the start of a network, which sites take part); the noise has another.
    """

    model: Model
    sizes: IntArray
    columns: int
    mu: float
    calibration: str = "certified"
    clip_rule: str = "consistent"
    budget_schedule: str = "geometric"
    aggregation_weights: str = "size"
    weight_constant: float = 1.0
    participation: float = 1.0
    seed: int = 0

    @property
    def paper(self) -> bool:
        """Whether the calibration is the paper's."""
        return self.calibration == "paper"

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the parameters."""
        return self.model.shape(self.columns)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)

    @cached_property
    def everyone(self) -> IntArray:
        """Numbers of all sites."""
        return np.arange(len(self.sizes), dtype=np.int64)

    def damping(self, eta: float) -> float:
        """Factor by which a gradient step shrinks earlier errors, guessed from the model's typical curvature.

        Parameters
        ----------
        eta : float
            Step size.

        Returns
        -------
        float
            Between 0.5 and 0.99.
        """
        return min(max(1.0 - eta * self.model.typical_curvature, 0.5), 0.99)

    def weights(self, releases: int = 1) -> FloatArray:
        """Aggregation weights: by size, or the paper's optimal ones (after its Theorem 1).

        Parameters
        ----------
        releases : int, default 1
            Number of releases that share the budget, for the optimal weights.

        Returns
        -------
        FloatArray
            One weight per site; they sum to one.
        """
        n = self.sizes.astype(float)
        if self.aggregation_weights == "size" or math.isinf(self.mu):
            return np.asarray(n / n.sum())
        d = self.size
        sampling = self.weight_constant * d / n
        privacy = d * max(d, math.log(n.sum())) * releases / (self.mu * n) ** 2
        w = 1.0 / (sampling + privacy)
        return np.asarray(w / w.sum())


@dataclass(frozen=True)
class Step:
    """One round: a query, the cost of each of its releases, the sites that take part, and the weights of their replies.

    Parameters
    ----------
    query : Query
        What is asked.
    mus : FloatArray
        Costs, (releases, 1) where all sites spend alike, else (releases, sites taking part).
    sites : IntArray
        Sites that take part, ascending.
    weights : FloatArray
        Weights of the sites' replies in their sum.
    uses : frozenset of str
        What the server sends with the query: its inputs, and public values that earlier steps have set. A site
        refuses a request that carries anything else, or less.
    sets : str or None
        Name of the public value that follows from this step's replies.
    """

    query: Query
    mus: FloatArray
    sites: IntArray
    weights: FloatArray
    uses: frozenset[str] = frozenset({"params"})
    sets: str | None = None

    def only(self, sites: IntArray) -> "Step":
        """The step as carried out if some sites did not answer: the others take over their weight.

        Parameters
        ----------
        sites : IntArray
            Sites that answered, ascending.

        Returns
        -------
        Step
        """
        if len(sites) == len(self.sites):
            return self
        there = np.isin(self.sites, sites)
        weights = self.weights[there]
        mus = self.mus if self.mus.shape[1] == 1 else self.mus[:, there]
        return replace(self, mus=mus, sites=sites, weights=weights * (self.weights.sum() / weights.sum()))

    def floats_up(self, context: PublicContext) -> int:
        """Floats in one site's reply.

        Parameters
        ----------
        context : PublicContext
            Public facts of the run.

        Returns
        -------
        int
        """
        return self.query.reply_size(context.size, context.columns)

    def floats_down(self, context: PublicContext) -> int:
        """Floats in one site's request: parameters, a drift of its own where there is one, bin edges, the clip norm.

        Parameters
        ----------
        context : PublicContext
            Public facts of the run.

        Returns
        -------
        int
        """
        return context.size * (2 if "drift" in self.uses else 1) + math.prod(self.query.edges_shape()) + 1


@dataclass(frozen=True)
class Schedule:
    """All steps of a run, by the phase that they belong to.

    Parameters
    ----------
    phases : tuple of (str, tuple of Step)
        Name and steps of each phase, in the order in which they run.
    """

    phases: tuple[tuple[str, tuple[Step, ...]], ...]

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all phases, in order."""
        return tuple(step for _, steps in self.phases for step in steps)

    def of(self, phase: str) -> tuple[Step, ...]:
        """Steps of one phase.

        Parameters
        ----------
        phase : str
            Its name.

        Returns
        -------
        tuple of Step
        """
        return dict(self.phases)[phase]

    def times_set(self, name: str, before: int) -> int:
        """Number of times that a public value has been set when a round begins.

        Parameters
        ----------
        name : str
            Name of the public value.
        before : int
            The round, from 0.

        Returns
        -------
        int
        """
        return sum(step.sets == name for step in self.steps[:before])


@dataclass
class RoundRecord:
    """Record of one round.

    Parameters
    ----------
    phase : str
        Phase of the round.
    asked : Step
        The step as planned; every site that was asked spends its cost.
    step : Step
        The step as carried out, with the sites that answered.
    clipping : Clipping
        How rows were clipped.
    sizes : FloatArray
        Rows of each site that answered.
    floats_up, floats_down : int
        Floats sent by the sites, and to them.
    """

    phase: str
    asked: Step
    step: Step
    clipping: Clipping
    sizes: FloatArray
    floats_up: int
    floats_down: int

    @property
    def sensitivities(self) -> FloatArray:
        """L2 sensitivities (releases, sites); zero where the round was not private."""
        if np.isinf(self.step.mus).all():
            return np.zeros((len(self.step.mus), len(self.sizes)))
        return self.step.query.sensitivity(self.sizes, self.clipping)

    @property
    def sds(self) -> FloatArray:
        """Standard deviations of the noise, (releases, sites)."""
        return self.step.query.noise_sds(self.sizes, self.clipping, self.step.mus)

    def aggregate_sd(self, release: int) -> float:
        """Standard deviation of the noise in each number of the weighted sum of replies.

        Parameters
        ----------
        release : int
            Number of the release, from 0.

        Returns
        -------
        float
        """
        return float(np.linalg.norm(self.step.weights * self.sds[release]))


@dataclass(frozen=True)
class Replies:
    """Replies of the sites in one round.

    Parameters
    ----------
    sites : IntArray
        Sites that answered, ascending.
    combined : FloatArray
        Weighted sum of the replies.
    site_values : callable
        Returns the single replies, one row per site.

    Notes
    -----
    For large models a checkpoint holds only the aggregate. Sites that are asked again repeat themselves to the last
    bit, as their noise is the same, so that this costs time and no privacy.
    """

    sites: IntArray
    combined: FloatArray
    site_values: Callable[[], FloatArray]

    @cached_property
    def values(self) -> FloatArray:
        """Single replies, one row per site that answered."""
        return self.site_values()

    def aggregate(self) -> FloatArray:
        """Weighted sum of the replies, in the order of the sites' names whatever order they answered in."""
        return self.combined


def sequential_steps(
    context: PublicContext,
    queries: Sequence[Query],
    shares: Sequence[FloatArray] | FloatArray,
    mu: float,
    uses: frozenset[str] = frozenset(),
) -> list[Step]:
    """Steps for queries asked one after another.

    Parameters
    ----------
    context : PublicContext
        Public facts of the run.
    queries : sequence of Query
        Queries, one per round.
    shares : sequence of FloatArray
        Shares of mu^2, one array per query with one entry per release.
    mu : float
        Cost of all of them together.
    uses : frozenset of str
        What the server sends beside the queries' own inputs.

    Returns
    -------
    list of Step

    Notes
    -----
    With client sampling and certified calibration the draw is balanced: every site takes part the same number of
    times, give or take one, and its budget goes to its own rounds alone. The paper draws sites anew each round and
    adds as much noise as if each took part in all of them.
    """
    flat = np.concatenate(shares)
    weights = context.weights(releases=len(flat))
    if context.participation >= 1.0:
        costs, ends = split(mu, flat)[:, None], np.cumsum([len(share) for share in shares])
        return [
            Step(query, costs[end - len(share) : end], context.everyone, weights, query.inputs | uses)
            for query, share, end in zip(queries, shares, ends, strict=True)
        ]
    takers = _participants(context, len(queries))
    spent = np.zeros(len(context.sizes))
    for share, sites in zip(shares, takers, strict=True):
        spent[sites] += share.sum()
    steps = []
    for query, share, sites in zip(queries, shares, takers, strict=True):
        if math.isinf(mu):
            mus = np.full((len(share), 1), math.inf)
        elif context.paper:
            mus = mu * np.sqrt(share / flat.sum())[:, None]
        else:
            mus = mu * np.sqrt(share[:, None] / spent[sites][None, :])
        steps.append(Step(query, mus, sites, weights[sites] / weights[sites].sum(), query.inputs | uses))
    return steps


def _participants(context: PublicContext, count: int) -> list[IntArray]:
    rng = np.random.default_rng([context.seed, 0x5A3B])
    m = len(context.sizes)
    size = max(1, round(context.participation * m))
    if context.paper:
        return [np.sort(rng.choice(m, size, replace=False)).astype(np.int64) for _ in range(count)]
    order = rng.permutation(m)
    turns = (np.arange(r * size, (r + 1) * size) for r in range(count))
    return [np.sort(np.take(order, turn, mode="wrap")).astype(np.int64) for turn in turns]
