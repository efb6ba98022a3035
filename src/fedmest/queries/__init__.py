"""Everything that a site can be asked."""

from fedmest.queries.base import MAX_PARAM, Query, QueryInputs, Release, Role, SiteData
from fedmest.queries.descent import Descent
from fedmest.queries.gradient import Gradient
from fedmest.queries.histogram import Histogram
from fedmest.queries.last_layer import LastLayerParts, PaperFisherStep
from fedmest.queries.local_fit import LocalFit, PooledFit
from fedmest.queries.moments import Moments
from fedmest.queries.newton import NewtonParts, NewtonStep, PaperNewton
from fedmest.queries.score_moments import ScoreMoments

__all__ = [
    "MAX_PARAM",
    "Descent",
    "Gradient",
    "Histogram",
    "LastLayerParts",
    "LocalFit",
    "Moments",
    "NewtonParts",
    "NewtonStep",
    "PaperFisherStep",
    "PaperNewton",
    "PooledFit",
    "Query",
    "QueryInputs",
    "Release",
    "Role",
    "ScoreMoments",
    "SiteData",
]
