"""Data from the models themselves, as in the paper's simulations."""

import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.privacy.gdp import Array

TRUTH = np.array([0.5, -0.5, 0.3, -0.3, 0.2])
FEATURE_SD = {"linear": 1.0, "logistic": 1.0, "poisson": 0.5}


def simulate(
    model: str, sizes: npt.ArrayLike, seed: int | list[int], theta: Array = TRUTH, feature_sd: float | None = None
) -> Federation:
    """Normal features, an intercept, responses from the model at `theta`; one site for each entry of `sizes`.

    >>> simulate("poisson", [3, 5], seed=1).sizes.tolist()
    [3, 5]
    """
    if model not in FEATURE_SD:
        raise InputError(f"simulate knows {', '.join(FEATURE_SD)}, not {model!r}")
    n = np.asarray(sizes, dtype=np.int64)
    rng = np.random.default_rng(seed)
    sd = FEATURE_SD[model] if feature_sd is None else feature_sd
    X = sd * rng.standard_normal((int(n.sum()), len(theta) - 1))
    eta = theta[0] + X @ theta[1:]
    if model == "linear":
        y = eta + rng.standard_normal(len(eta))
    elif model == "logistic":
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
    return Federation.from_arrays(X, y, np.repeat(np.arange(len(n)), n))
