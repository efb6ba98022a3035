"""Data from the models themselves, as in the paper's simulations."""

import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.data.federation import Federation
from fedmest.models import GLM, Model, model_named

TRUTH = np.array([0.5, -0.5, 0.3, -0.3, 0.2])


def simulate(
    model: str | Model,
    sizes: npt.ArrayLike,
    seed: int | list[int],
    theta: FloatArray = TRUTH,
    feature_sd: float | None = None,
) -> Federation:
    """Normal features, an intercept, responses from the model at `theta`; one site for each entry of `sizes`.

    >>> simulate("poisson", [3, 5], seed=1).sizes.tolist()
    [3, 5]
    """
    kind = model_named(model) if isinstance(model, str) else model
    if not isinstance(kind, GLM) or kind.family.multiclass:
        raise InputError(f"rows are simulated from regressions with one predictor, not from the {kind.name} model")
    n = np.asarray(sizes, dtype=np.int64)
    rng = np.random.default_rng(seed)
    sd = kind.family.plan.feature_sd if feature_sd is None else feature_sd
    X = sd * rng.standard_normal((int(n.sum()), len(theta) - 1))
    y = kind.simulate(theta[0] + X @ theta[1:], rng)
    return Federation.from_arrays(X, y, np.repeat(np.arange(len(n)), n))


def usual_feature_sd(model: str) -> float:
    """Spread of the features that `simulate` draws unless it is given."""
    kind = model_named(model)
    assert isinstance(kind, GLM)
    return kind.family.plan.feature_sd
