"""Networks as models: theta is one flat vector (1, size), the score of a row its whole gradient.

The sensitivity of a clipped mean, 2 B / n, is proved for real numbers; networks compute in single precision. What
rounding adds is paid for in advance: rows are clipped to B (1 - MARGIN).

- A row's gradient depends on that row and theta alone, in the last bit too: a chunk has the same size whatever its rows
  hold, and every row the same place in it (see `Network._parts`).
- So replacing a row changes the sum of its own chunk alone; chunks are added up in double precision.
- That sum of at most c = 80 vectors of length B (1 - MARGIN) is rounded by at most c u a term, u = 2^-24, in whatever
  order: by c^2 u B = 0.0004 B altogether. It happens twice, with the old row and with the new one.
- The exact sums differ by 2 B (1 - MARGIN), and a row's own length is known to about 0.0001. Together that is less
  than 2 B (1 - 0.001) + 2 (0.0004 + 0.0001) B < 2 B.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.federation import Federation, Index, Rows
from fedmest.models.base import Clipping, Model
from fedmest.models.multinomial import Multinomial
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise

if TYPE_CHECKING:
    from torch import nn

    from fedmest.models.network import Network

MARGIN = 1e-3


class NetworkModel(Model):
    """A classifier of rows that are images (or vectors) of the given shape; see `fedmest.models.network`.

    `layers` is the chain of layers or a function that builds it, so that torch is loaded when it is needed. Layers
    whose places are in `held` stay at a random start; noise goes on the others alone.

    >>> from torch import nn  # doctest: +SKIP
    >>> fit(federation, NetworkModel(nn.Sequential(nn.Linear(64, 10)), (64,)), "fedavg", eta=0.1)  # doctest: +SKIP
    """

    linear = False
    clips = ("norm",)
    typical_curvature = 0.1
    bound_quantile = 0.5  # gradients of a network that learns soon shrink; a tight bound means less noise
    curvature_cap = Multinomial.curvature_cap  # of the last layer

    def __init__(
        self, layers: nn.Sequential | Callable[[], nn.Sequential], shape: tuple[int, ...], name: str = "network",
        held: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.name, self.layers, self.row_shape, self.held = name, layers, shape, tuple(held)

    @cached_property
    def network(self) -> Network:
        from fedmest.models.network import Network, need_torch

        need_torch()
        from torch import nn

        layers = deepcopy(self.layers) if isinstance(self.layers, nn.Sequential) else self.layers()
        return Network(layers, self.row_shape, held=self.held)

    @property
    def identity(self) -> str:
        return f"{self.name} {self.row_shape} {self.held} {self.network.layers}"

    @property
    def tools(self) -> str:
        import torch

        with _exactly():
            return f"torch {torch.__version__}, {torch.get_num_threads()} threads"

    @property
    def head(self) -> tuple[int, int]:
        """Shape (classes, units + 1) of the last layer's coefficients, biases first."""
        classes, units = self.network.head
        return classes, units + 1

    # -- the parameter ----------------------------------------------------------------------------------------

    def shape(self, columns: int) -> tuple[int, int]:
        return 1, self.network.size

    def start(self, columns: int, seed: int) -> Array:
        return np.asarray(self.network.initial(seed), dtype=float)[None]

    def reach(self, columns: int) -> float:
        return np.inf

    def guessed_bound(self, columns: int) -> float:
        return 1.0

    def head_of(self, theta: Array) -> Array:
        """The last layer as a matrix of the shape `head`: its rows times (1, hidden units) are logits."""
        classes, features = self.head
        last = theta[0, -classes * features :]
        return np.column_stack([last[-classes:], last[:-classes].reshape(classes, features - 1)])

    def with_head(self, theta: Array, head: Array) -> Array:
        """Theta with another last layer."""
        last = np.concatenate([head[:, 1:].ravel(), head[:, 0]])
        return np.concatenate([theta[0, : -len(last)], last])[None]

    # -- rows -------------------------------------------------------------------------------------------------

    def target(self, federation: Federation) -> Array:
        """Whole numbers from 0 stand for themselves; other labels are numbered in their order."""
        pixels = int(np.prod(self.row_shape))
        if len(federation.features) != pixels:
            size = " x ".join(map(str, self.row_shape))
            raise InputError(
                f"the {self.name} model takes rows of {size} = {pixels} numbers; the data have "
                f"{len(federation.features)} feature columns"
            )
        values, count = federation.target, self.network.classes
        if values.dtype.kind in "fiub" and np.isin(values, np.arange(count)).all():
            self.classes = tuple(range(count))
            return np.ascontiguousarray(values, dtype=float)
        labels, codes = np.unique(values if values.dtype.kind in "fiub" else values.astype(str), return_inverse=True)
        if len(labels) > count:
            raise InputError(
                f"target {federation.target_name!r} has {len(labels)} distinct values; the {self.name} model has "
                f"{count} classes"
            )
        self.classes = tuple(label.item() for label in labels)
        return codes.astype(float)

    def mean_scores(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        out = np.empty((len(sites), 1, self.network.size))
        with _exactly():
            for i, site in enumerate(sites):
                theta = thetas[i] if thetas.ndim == 3 else thetas
                out[i] = self._mean_score(*_rows(rows, site), theta, clipping) + penalty * theta
        return out

    def local_descents(
        self, rows: Rows, sites: Index, thetas: Array, steps: int, eta: float, clipping: Clipping, penalty: Array,
        drifts: Array, sds: Array, factors: Array, noise: Noise,
    ) -> Array:  # fmt: skip
        out = np.empty((len(sites), 1, self.network.size))
        with _exactly():
            for i, site in enumerate(sites):
                x, y = _rows(rows, site)
                theta = (thetas[i] if thetas.ndim == 3 else thetas).copy()
                drift = drifts[i] if drifts.ndim == 3 else drifts
                for k in range(steps):
                    theta -= eta * (self._mean_score(x, y, theta, clipping) + penalty * theta + drift)
                    noise.add_step(theta[0], sds[i] * factors[k, i % factors.shape[1]], site, k)
                out[i] = theta
        return out

    def score_norms(self, rows: Rows, theta: Array) -> Array:
        with _exactly():
            sites = (_rows(rows, site) for site in range(len(rows.sizes)))
            norms = [self.network.clipped_sum(x, y, theta[0], np.inf)[1] for x, y in sites]
        return np.concatenate(norms).astype(float)

    def features(self, rows: Rows, site: int, theta: Array) -> Array:
        """One and the last hidden layer; zeros where a row makes that layer overflow."""
        with _exactly():
            hidden = self.network.hidden(_rows(rows, site)[0], theta[0]).astype(float)
        hidden[~np.isfinite(hidden).all(axis=1)] = 0.0
        return np.column_stack([np.ones(len(hidden)), hidden])

    def row_scores(self, rows: Rows, site: int, theta: Array) -> Array:
        """The gradient of each of a site's rows, (rows, size); mind the memory."""
        with _exactly():
            return self.network.row_gradients(*_rows(rows, site), theta[0])

    def _mean_score(self, x: npt.NDArray[np.float32], y: Array, theta: Array, clipping: Clipping) -> Array:
        return self.network.clipped_sum(x, y, theta[0], clipping.bound * (1 - MARGIN))[0] / max(len(y), 1)

    # -- predictions ------------------------------------------------------------------------------------------

    def predictors(self, X: Array, theta: Array, intercept: bool) -> Array:
        with _exactly():
            return self.network.log_probabilities(_single(X), theta[0]).astype(float)

    def mean(self, eta: Array) -> Array:
        return Multinomial().mean(eta)

    def log_likelihood(self, eta: Array, y: Array) -> float:
        return Multinomial().log_likelihood(eta, y)


def mnist_cnn() -> NetworkModel:
    def build() -> nn.Sequential:
        from fedmest.models.network import mnist_net

        return mnist_net()

    return NetworkModel(build, (1, 28, 28), "mnist-cnn")


def cifar_cnn() -> NetworkModel:
    def build() -> nn.Sequential:
        from fedmest.models.network import cifar_net

        return cifar_net()

    return NetworkModel(build, (3, 32, 32), "cifar-cnn")


def _rows(rows: Rows, site: int) -> tuple[npt.NDArray[np.float32], Array]:
    """Images and labels of a site. The first packed column is the intercept's, for which networks have no use."""
    return _single(rows.of_site(site)[:, 1:]), rows.targets_of_site(site)


def _single(values: Array) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # a number too large becomes infinite, and its row counts as nothing
        return values.astype(np.float32)


@contextmanager
def _exactly() -> Iterator[None]:
    """Full single precision, which the margin counts on, and one thread where numba keeps to one, as in studies."""
    import torch

    mode = os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT").upper()
    if mode != "STRICT":
        raise InputError(f"ONEDNN_DEFAULT_FPMATH_MODE={mode} rounds more than the clipping bound allows for; unset it")
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if numba.get_num_threads() == 1 and threads > 1:
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
