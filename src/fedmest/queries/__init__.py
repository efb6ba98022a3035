"""Everything that a site can be asked."""

from fedmest.queries.base import LARGEST_THETA, Ask, Query, Release, SiteData
from fedmest.queries.descent import Descent
from fedmest.queries.gradient import Gradient
from fedmest.queries.head import HeadParts, PaperFisherStep
from fedmest.queries.histogram import Histogram
from fedmest.queries.local_fit import LocalFit, PooledFit
from fedmest.queries.moments import Moments
from fedmest.queries.newton import NewtonParts, NewtonStep, PaperNewton
from fedmest.queries.spread import Spread

__all__ = [
    "LARGEST_THETA", "Ask", "Descent", "Gradient", "HeadParts", "Histogram", "LocalFit", "Moments", "NewtonParts",
    "NewtonStep", "PaperFisherStep", "PaperNewton", "PooledFit", "Query", "Release", "SiteData", "Spread",
]  # fmt: skip
