"""Networks as models: theta is one flat vector (1, size), the score of a row its whole gradient.

The sensitivity of a clipped mean, 2 B / n, is proved for real numbers; networks compute in single precision. What
rounding adds is accounted for in advance: rows are clipped to B (1 - MARGIN).

- A row's gradient depends on that row and theta alone, in the last bit too: a chunk has the same size whatever its rows
  hold, and every row the same place in it (see `GradSampleNetwork._parts`).
- So replacing a row changes the sum of its own chunk alone; chunks are added up in double precision.
- That sum of at most c = 80 vectors of length B (1 - MARGIN) is rounded by at most c u a term, u = 2^-24, in whatever
  order: by c^2 u B = 0.0004 B altogether. It happens twice, with the old row and with the new one.
- Numbers that single precision loses because they are too small are worth less than 1e-14 in a row, whatever its size
  (see `GradSampleNetwork._parts`), and bounds are at least 1e-10. Flushing denormals to zero is refused all the same.
- The exact sums differ by 2 B (1 - MARGIN), and a row's own length is known to about 0.0001. Together that is less
  than 2 B (1 - 0.001) + 2 (0.0004 + 0.0001) B < 2 B.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numba
import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.data.federation import Federation
from fedmest.data.packing import Rows
from fedmest.data.schema import TargetRule
from fedmest.models.base import Model
from fedmest.models.clipping import Clipping
from fedmest.models.family import AuditResponses
from fedmest.models.multinomial import MULTINOMIAL, softmax_loglike, softmax_mean
from fedmest.privacy.noise import Noise

if TYPE_CHECKING:
    from torch import nn

    from fedmest.models.grad_sample import GradSampleNetwork

MARGIN = 1e-3


@dataclass(frozen=True, eq=False)
class NetworkModel(Model):
    """A network that classifies rows, which are images or vectors; see `fedmest.models.grad_sample`.

    Parameters
    ----------
    layers : torch.nn.Sequential or callable
        The chain of layers, or a function that builds it, so that torch is loaded when it is needed.
    row_shape : tuple of int
        Shape of one row; a vector of 64 numbers is ``(64,)``.
    name : str
        Its name in reports.
    frozen_layers : collection of int
        Places of layers that stay at a random start; noise goes on the others alone.
    classes : tuple
        Classes of the target; set by `encode_target`.

    Examples
    --------
    >>> from torch import nn  # doctest: +SKIP
    >>> fit(federation, NetworkModel(nn.Sequential(nn.Linear(64, 10)), (64,)), "fedavg", eta=0.1)  # doctest: +SKIP
    """

    layers: nn.Sequential | Callable[[], nn.Sequential]
    row_shape: tuple[int, ...]
    name: str = "network"
    frozen_layers: Collection[int] = ()
    classes: tuple[Any, ...] = ()

    has_coefficients: ClassVar[bool] = False
    clips: ClassVar[tuple[str, ...]] = ("norm",)
    typical_curvature: ClassVar[float] = 0.1
    clip_quantile: ClassVar[float] = 0.5  # gradients soon shrink; a tight bound means less noise
    curvature_slope: ClassVar[float] = 0.25
    curvature_upper_bound: ClassVar[float | None] = MULTINOMIAL.curvature_upper_bound  # of the last layer
    audit: ClassVar[AuditResponses] = AuditResponses(extreme=(1.0, 1.0), classes=2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen_layers", tuple(self.frozen_layers))

    def with_classes(self, classes: tuple[Any, ...]) -> Self:
        known = replace(self, classes=classes)
        known.__dict__["network"] = self.network  # built once
        return known

    @cached_property
    def network(self) -> GradSampleNetwork:
        """The layers, built once, with their gradients row by row."""
        from fedmest.models.grad_sample import GradSampleNetwork, need_torch

        need_torch()
        from torch import nn

        layers = deepcopy(self.layers) if isinstance(self.layers, nn.Sequential) else self.layers()
        return GradSampleNetwork(layers, self.row_shape, frozen_layers=self.frozen_layers)

    @property
    def identity(self) -> str:
        return f"{self.name} {self.row_shape} {self.frozen_layers} {self.network.layers}"

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

    def start(self, columns: int, seed: int) -> FloatArray:
        return np.asarray(self.network.initial(seed), dtype=float)[None]

    def max_step_norm(self, columns: int) -> float:
        return np.inf

    def fallback_clip_norm(self, columns: int) -> float:
        return 1.0

    def head_of(self, theta: FloatArray) -> FloatArray:
        """Last layer as a matrix of the shape `head`: its rows times (1, hidden units) are logits.

        Parameters
        ----------
        theta : FloatArray
            All parameters (1, size).

        Returns
        -------
        FloatArray
        """
        classes, features = self.head
        last = theta[0, -classes * features :]
        return np.column_stack([last[-classes:], last[:-classes].reshape(classes, features - 1)])

    def with_head(self, theta: FloatArray, head: FloatArray) -> FloatArray:
        """Parameters with another last layer.

        Parameters
        ----------
        theta : FloatArray
            All parameters (1, size).
        head : FloatArray
            The last layer, of the shape `head`.

        Returns
        -------
        FloatArray
        """
        last = np.concatenate([head[:, 1:].ravel(), head[:, 0]])
        return np.concatenate([theta[0, : -len(last)], last])[None]

    # -- rows -------------------------------------------------------------------------------------------------

    def encode_target(self, federation: Federation) -> tuple[Self, FloatArray]:
        """Target as numbers: whole numbers from 0 stand for themselves, other labels are numbered in their order.

        Parameters
        ----------
        federation : Federation
            Holds the target.

        Returns
        -------
        model : NetworkModel
            The model with its classes.
        y : FloatArray
            Target; a class is its place among the classes.

        Raises
        ------
        InputError
            If rows have another number of columns, or there are too many classes.
        """
        pixels = int(np.prod(self.row_shape))
        if len(federation.features) != pixels:
            size = " x ".join(map(str, self.row_shape))
            raise InputError(
                f"the {self.name} model takes rows of {size} = {pixels} numbers; the data have "
                f"{len(federation.features)} feature columns"
            )
        values, count = federation.target, self.network.classes
        numbered = tuple(range(count))
        if self.classes in ((), numbered) and values.dtype.kind in "fiub" and np.isin(values, numbered).all():
            return self.with_classes(numbered), np.ascontiguousarray(values, dtype=float)
        rule = TargetRule(declared="", max_classes=count)
        classes, y = rule.encode(federation, self.name, self.classes)
        return self.with_classes(classes), y

    def mean_scores(
        self, rows: Rows, sites: IntArray, thetas: FloatArray, clipping: Clipping, penalty: FloatArray
    ) -> FloatArray:
        out = np.empty((len(sites), 1, self.network.size))
        with _exactly():
            for i, site in enumerate(sites):
                theta = thetas[i] if thetas.ndim == 3 else thetas
                out[i] = self._mean_score(*_rows(rows, site), theta, clipping) + penalty * theta
        return out

    def local_descents(
        self,
        rows: Rows,
        sites: IntArray,
        thetas: FloatArray,
        steps: int,
        eta: float,
        clipping: Clipping,
        penalty: FloatArray,
        drifts: FloatArray,
        sds: FloatArray,
        factors: FloatArray,
        noise: Noise,
    ) -> FloatArray:
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

    def score_norms(self, rows: Rows, theta: FloatArray) -> FloatArray:
        with _exactly():
            sites = (_rows(rows, site) for site in range(len(rows.sizes)))
            norms = [self.network.clipped_sum(x, y, theta[0], np.inf)[1] for x, y in sites]
        return np.concatenate(norms).astype(float)

    def features(self, rows: Rows, site: int, theta: FloatArray) -> FloatArray:
        """Last hidden layer with a one in front; zeros where a row makes that layer overflow.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        site : int
            The site.
        theta : FloatArray
            All parameters (1, size).

        Returns
        -------
        FloatArray
            (rows, units + 1).
        """
        with _exactly():
            hidden = self.network.hidden(_rows(rows, site)[0], theta[0]).astype(float)
        hidden[~np.isfinite(hidden).all(axis=1)] = 0.0
        return np.column_stack([np.ones(len(hidden)), hidden])

    def row_scores(self, rows: Rows, site: int, theta: FloatArray) -> FloatArray:
        """Gradient of each of a site's rows; takes much memory.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        site : int
            The site.
        theta : FloatArray
            All parameters (1, size).

        Returns
        -------
        FloatArray
            (rows, size).
        """
        with _exactly():
            return self.network.row_gradients(*_rows(rows, site), theta[0])

    def _mean_score(
        self, x: npt.NDArray[np.float32], y: FloatArray, theta: FloatArray, clipping: Clipping
    ) -> FloatArray:
        return self.network.clipped_sum(x, y, theta[0], clipping.bound * (1 - MARGIN))[0] / max(len(y), 1)

    # -- predictions ------------------------------------------------------------------------------------------

    def predictors(self, X: FloatArray, theta: FloatArray, intercept: bool) -> FloatArray:
        with _exactly():
            return self.network.log_probabilities(_single(X), theta[0]).astype(float)

    def mean(self, eta: FloatArray) -> FloatArray:
        return softmax_mean(eta, np.empty(0))

    def loglike(self, eta: FloatArray, y: FloatArray) -> float:
        return softmax_loglike(eta, y, np.empty(0))


def mnist_cnn() -> NetworkModel:
    """The convolutional network of the paper's MNIST experiments."""

    def build() -> nn.Sequential:
        from fedmest.models.grad_sample import mnist_net

        return mnist_net()

    return NetworkModel(build, (1, 28, 28), "mnist-cnn")


def cifar_cnn() -> NetworkModel:
    """The convolutional network of the paper's CIFAR-10 experiments."""

    def build() -> nn.Sequential:
        from fedmest.models.grad_sample import cifar_net

        return cifar_net()

    return NetworkModel(build, (3, 32, 32), "cifar-cnn")


def _rows(rows: Rows, site: int) -> tuple[npt.NDArray[np.float32], FloatArray]:
    """Images and labels of a site. The first packed column is the intercept's, for which networks have no use."""
    return _single(rows.of_site(site)[:, 1:]), rows.targets_of_site(site)


def _single(values: FloatArray) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # a number too large becomes infinite, and its row counts as nothing
        return values.astype(np.float32)


@contextmanager
def _exactly() -> Iterator[None]:
    """Full single precision, which the margin counts on, and one thread where numba keeps to one, as in studies."""
    import torch

    from fedmest.models.grad_sample import refuse_flushed_denormals

    refuse_flushed_denormals()
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
