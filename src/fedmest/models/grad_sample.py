"""Networks in torch whose rows are clipped one by one, at about the cost of a plain gradient.

After Bu, Wang, Zha and Karypis (2023), "Differentially private optimization on large model at small cost": one forward
pass that keeps what goes into each layer, one backward pass for the gradients at the layers' outputs and nothing else.
Both together give the norm of every row's gradient, and then, row by row weighted, the clipped sum. Nothing runs twice.

- A linear layer's row gradient is an outer product, so its squared norm is (|in|^2 + 1) |out gradient|^2, and the
  clipped sum is one matrix product.
- A convolution's row gradient is a product of the row's unfolded input with its output gradient. It is formed for a few
  dozen rows at a time and kept until their factors are known: norm and weighted sum are then read off. (Gram matrices
  over positions give the norm without it, but the sum then costs that same product anyway.)
- Lengths whose product is a norm, |in| and |out gradient|, are taken in double precision: the square of 1e-23 is zero
  in single precision, and an input of 1e19 makes up for it. Where the row gradient itself is formed, squares that
  vanish stand for less than 2^-63 a number, far below MIN_BOUND.
- Rows go through in chunks that fit the cache, channels last. That is faster than all at once, and bounds the memory.

Theta is one flat vector, in the order of the module's `parameters()`. Same inputs and threads, same bits.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ImportError:  # this file can be read without torch; building a network asks for it, see need_torch
    pass

Vector = NDArray[Any]  # float32, or float64 in a network built with `double`
CHUNK = 80  # rows at a time: 40 to 80 ran fastest
MIN_BOUND = 1e-10  # clipping to less would have to count numbers that single precision loses
MEMORY = 200 * 2**20  # bytes that a chunk may take; large networks get fewer rows


def need_torch() -> None:
    """Raise an InputError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("networks need torch: pip install 'fedmest[neural]'")


def refuse_flushed_denormals() -> None:
    """Raise an InputError where the processor takes numbers below 1e-38 for zero: bounds are proved for those, too."""
    if not (torch.tensor([1e-30]) * 1e-10).item() > 0.0:
        raise InputError(
            "denormal numbers are flushed to zero, which clipping does not allow for; switch it off with "
            "torch.set_flush_denormal(False), and load no library that was built with -ffast-math"
        )


def mnist_net() -> nn.Sequential:
    """The paper's network for 28 x 28 digits: 421,642 parameters.

    The paper names the channels (32, 64) and units (128, 10); kernels of 3 and pooling by 2 are our reading. Pooling
    comes before ReLU: the function and its gradient are the same, and ReLU has a quarter of the work.
    """
    return _net((1, 32, 64), 64 * 7 * 7, 128)


def cifar_net() -> nn.Sequential:
    """The paper's network for 32 x 32 colour images: 620,362 parameters, read as for `mnist_net`.

    Where the paper counts three fully connected layers but lists two (256, 10), the list is followed.
    """
    return _net((3, 32, 64, 128), 128 * 4 * 4, 256)


def _net(channels: tuple[int, ...], inputs: int, units: int) -> nn.Sequential:
    need_torch()
    blocks = [(nn.Conv2d(c, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()) for c, out in pairwise(channels)]
    return nn.Sequential(*chain(*blocks), nn.Flatten(), nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 10))


class GradSampleNetwork:
    """A classifier: a chain of layers, log-softmax on top, negative log-likelihood as a row's loss.

    Holds shapes and no rows; theta is handed in with each call and never changed. Rows are (n, *shape), or flat.

    Layers whose places in the chain are in `frozen_layers` stay at a random start that belongs to the network (drawn
    from seed 0) and are no part of theta: a wide layer that only passes things on costs more in noise than it learns.
    """

    def __init__(
        self,
        layers: nn.Sequential,
        shape: tuple[int, ...],
        *,
        frozen_layers: Collection[int] = (),
        chunk: int | None = None,
        double: bool = False,
    ) -> None:
        self.layers, self.shape, self.dtype = layers, shape, torch.float64 if double else torch.float32
        self.frozen_layers = frozenset(frozen_layers)
        self._check()
        self._draw(0, self.frozen_layers)
        self.shapes = [tuple(p.shape) for p in self._parameters()]
        self.size = sum(math.prod(s) for s in self.shapes)
        self.classes, self.row_bytes = self._measure()
        self.chunk = chunk or max(1, min(CHUNK, MEMORY // self.row_bytes))

    def get(self) -> Vector:
        """The module's own parameters as one vector."""
        return _flat([p.to(self.dtype) for p in self._parameters()])

    def set(self, theta: ArrayLike) -> None:
        """Write theta into the module, for use outside of this class."""
        with torch.no_grad():
            for p, values in zip(self._parameters(), self._unpack(theta), strict=True):
                p.copy_(values)

    def initial(self, seed: int) -> Vector:
        """A random start (zero would leave all units alike); the same for the same seed. Public: no row is read.

        Weights keep the size of what passes through ReLU layers (He et al. 2015): where it shrinks from layer to layer,
        clipped gradients say little but that classes are balanced, and training does not leave the start.
        """
        self._draw(seed, frozenset(range(len(self.layers))) - self.frozen_layers)
        return self.get()

    def _draw(self, seed: int, places: Collection[int]) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for place, layer in enumerate(self.layers):
                if place in places and isinstance(layer, (nn.Conv2d, nn.Linear)):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)

    def _parameters(self) -> list[Tensor]:
        """Of the layers that theta is made of, in their order."""
        return [
            p for place, layer in enumerate(self.layers) if place not in self.frozen_layers for p in layer.parameters()
        ]

    def clipped_sum(self, x: ArrayLike, y: ArrayLike, theta: ArrayLike, bound: float) -> tuple[FloatArray, Vector]:
        """Sum of the rows' gradients, each shortened to norm `bound`, and the norms before that.

        With a bound, a row whose gradient is not finite counts as zero: it must not show itself by spoiling the sum.
        "Not finite" are also norms, of a gradient or of a layer's inputs, whose squares overflow, from 1.8e19 on.
        Chunks are added up in double precision, so that a changed row changes the rounding of its own chunk alone.
        """
        if not bound > 0:
            raise InputError(f"the bound on a row's gradient must be positive, not {bound}")
        if bound < MIN_BOUND:
            raise InputError(f"the bound on a row's gradient must be at least {MIN_BOUND}, not {bound}")
        refuse_flushed_denormals()
        weights, total = self._unpack(theta), torch.zeros(self.size, dtype=torch.float64)
        norms = []
        for images, labels in self._chunks(x, y):
            sums = [torch.zeros(s, dtype=self.dtype) for s in self.shapes]
            norms.append(self._add(images, labels, weights, bound, sums))
            total += torch.cat([part.reshape(-1) for part in sums])
        return np.asarray(total), _flat([part.to(self.dtype) for part in norms])

    def row_gradients(self, x: ArrayLike, y: ArrayLike, theta: ArrayLike) -> Vector:
        """Every row's gradient, (rows, size); one that is not finite is zero. Takes rows times size floats."""
        weights, rows, done = self._unpack(theta), torch.zeros(len(np.asarray(y)), self.size, dtype=self.dtype), 0
        for images, labels in self._chunks(x, y):
            pieces: list[Tensor] = []
            for layer, a, g in self._parts(images, labels, weights)[0]:
                if isinstance(layer, nn.Conv2d):
                    out, channels, height, width = layer.weight.shape
                    a = a.reshape(len(a), out, height, width, channels).permute(0, 1, 4, 2, 3)
                    pieces.append(a.flatten(1))
                else:
                    pieces.append((g[:, :, None] * a[:, None, :]).flatten(1))
                if layer.bias is not None:
                    pieces.append(g)
            torch.cat(pieces, 1, out=rows[done : done + len(labels)])
            done += len(labels)
        return np.asarray(rows)

    def hidden(self, x: ArrayLike, theta: ArrayLike) -> Vector:
        """What goes into the last linear layer, (rows, units)."""
        weights, chunks = self._unpack(theta), []
        for part in torch.split(self._images(x), self.chunk):
            kept: list[Any] = []
            self._forward(part, weights, kept)
            chunks.append(kept[-1][1])
        return np.asarray(torch.cat(chunks))

    @property
    def head(self) -> tuple[int, int]:
        """Shape (classes, units) of the last layer, which must be linear with a bias: its weights end theta."""
        last = self.layers[-1]
        if len(self.layers) - 1 in self.frozen_layers:
            raise InputError("the last layer is frozen; this method works on it")
        if not isinstance(last, nn.Linear) or last.bias is None:
            raise InputError(f"the network must end in a linear layer with a bias for this method, not in {last}")
        return last.out_features, last.in_features

    def gradient(self, x: ArrayLike, y: ArrayLike, theta: ArrayLike) -> Vector:
        """Plain sum of the rows' gradients, by torch's own backward pass, in the same chunks."""
        weights = [w.requires_grad_() for w in self._unpack(theta)]
        sums = [torch.zeros_like(w, requires_grad=False) for w in weights]
        for images, labels in self._chunks(x, y):
            loss = F.cross_entropy(self._forward(images, weights), labels, reduction="sum")
            for total, part in zip(sums, torch.autograd.grad(loss, weights), strict=True):
                total += part
        return _flat(sums)

    def _parts(self, x: Tensor, y: Tensor, weights: list[Tensor]) -> tuple[list[tuple[Any, Tensor, Tensor]], Tensor]:
        """What one chunk's row gradients are made of, and their norms.

        Of a convolution: its kernel's row gradients and its output's, summed over positions; of a linear layer: inputs
        and output gradients. Rows whose gradient is not finite are zero there and have an infinite norm. They are
        taken out afterwards, not left out before: the others must be computed in the same places as ever.

        Norms are in double precision, in which no square of a single number, nor a product of two, is lost. A row with
        inputs longer than 2^64 is out, so that what rounding loses of g times a factor is worth no more than 2^-85.
        (Squares of double numbers may vanish below 1e-154: networks built with `double` are for comparisons alone.)
        """
        kept: list[tuple[Any, Tensor, Tensor]] = []
        loss = F.cross_entropy(self._forward(x, weights, kept), y, reduction="sum")
        parts, squares = [], torch.zeros(len(x), dtype=torch.float64)
        limit, good = torch.finfo(self.dtype).max, torch.ones(len(x), dtype=torch.bool)
        for (layer, a, _), g in zip(kept, torch.autograd.grad(loss, [out for *_, out in kept]), strict=True):
            biased = float(layer.bias is not None)
            if isinstance(layer, nn.Conv2d):
                g = g.permute(0, 2, 3, 1).flatten(1, 2)  # rows, positions, channels
                a, g = _row_gradients(a, g, layer), g.sum(1)
                kernel = torch.linalg.vector_norm(a, dim=2)  # of each output channel: the big sum stays as it is
                squares += _squares(kernel) + biased * _squares(g)
            else:
                inputs, outputs = _squares(a), _squares(g)
                good &= (inputs <= limit) & (outputs <= limit)
                squares += (inputs + biased) * outputs
            parts.append((layer, a, g))
        good &= squares <= limit  # false of NaN, too
        if not good.all():
            parts = [(layer, _without(a, ~good), _without(g, ~good)) for layer, a, g in parts]
        return parts, squares.sqrt().masked_fill(~good, math.inf)

    def _add(self, x: Tensor, y: Tensor, weights: list[Tensor], bound: float, sums: list[Tensor]) -> Tensor:
        """Add the clipped gradients of one chunk to `sums`, return their norms in double precision."""
        parts, norms = self._parts(x, y, weights)
        safe = bound * (1 - 32 * torch.finfo(self.dtype).eps)  # a norm's rounding must not let a row exceed the bound
        factors = torch.where(norms > safe, safe / norms, 1.0).to(self.dtype)
        totals = iter(sums)
        for layer, a, g in parts:
            total = next(totals)
            if isinstance(layer, nn.Conv2d):
                last = total.permute(0, 2, 3, 1)
                last += (factors @ a.flatten(1)).reshape(last.shape)
            else:
                total.addmm_((g * factors[:, None]).t(), a)
            if layer.bias is not None:
                next(totals).add_(factors @ g)
        return norms

    def log_probabilities(self, x: ArrayLike, theta: ArrayLike) -> Vector:
        weights = self._unpack(theta)
        with torch.no_grad():
            chunks = [self._forward(part, weights) for part in torch.split(self._images(x), self.chunk)]
            return np.asarray(F.log_softmax(torch.cat(chunks), 1))

    def predict(self, x: ArrayLike, theta: ArrayLike) -> NDArray[np.int64]:
        """The likeliest class of each row."""
        return np.asarray(self.log_probabilities(x, theta).argmax(axis=1), dtype=np.int64)

    def accuracy(self, x: ArrayLike, y: ArrayLike, theta: ArrayLike) -> float:
        return float(np.mean(self.predict(x, theta) == np.asarray(y)))

    def _forward(self, x: Tensor, weights: list[Tensor], kept: list[Any] | None = None) -> Tensor:
        """Logits; into `kept` go the layers with weights, their inputs, and their outputs to take gradients at."""
        values = iter(weights)
        for place, layer in enumerate(self.layers):
            if not isinstance(layer, (nn.Conv2d, nn.Linear)):
                x = layer(x)
                continue
            frozen_layers = place in self.frozen_layers
            source = (p.detach().to(self.dtype) for p in layer.parameters()) if frozen_layers else values
            inputs, weight, bias = x, next(source), None if layer.bias is None else next(source)
            if isinstance(layer, nn.Conv2d):
                x = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)
                x = x.contiguous(memory_format=torch.channels_last)  # one channel alone does not ask for it
            else:
                x = F.linear(x, weight, bias)
            if kept is not None and not frozen_layers:
                x.requires_grad_()  # weights are constants here: the backward pass leaves their gradients out
                kept.append((layer, inputs.detach(), x))
        return x

    def _unpack(self, theta: ArrayLike) -> list[Tensor]:
        flat = torch.tensor(np.asarray(theta), dtype=self.dtype).reshape(-1)  # a copy
        if len(flat) != self.size:
            raise InputError(f"theta has {len(flat)} values; the network has {self.size} parameters")
        pieces = torch.split(flat, [math.prod(s) for s in self.shapes])
        return [_channels_last(p.reshape(s)) for p, s in zip(pieces, self.shapes, strict=True)]

    def _images(self, x: ArrayLike) -> Tensor:
        images = torch.as_tensor(np.asarray(x)).to(self.dtype)
        if math.prod(images.shape[1:]) != math.prod(self.shape):
            raise InputError(f"rows of shape {tuple(images.shape[1:])}; the network needs {self.shape}")
        return _channels_last(images.reshape(len(images), *self.shape))

    def _chunks(self, x: ArrayLike, y: ArrayLike) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self._images(x), torch.as_tensor(np.asarray(y)).to(torch.int64)
        if len(labels) != len(images) or ((labels < 0) | (labels >= self.classes)).any():
            raise InputError(f"the network needs one class for each row, numbered 0 to {self.classes - 1}")
        even = max(1, -(-len(labels) // max(1, -(-len(labels) // self.chunk))))  # no small chunk at the end
        return zip(torch.split(images, even), torch.split(labels, even), strict=True)

    def _check(self) -> None:
        """Only layers that treat rows apart and always alike: a bound on a row means nothing otherwise."""
        plain = {nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.Identity}
        for layer in self.layers:
            fine = type(layer) in plain and not getattr(layer, "inplace", False)
            if type(layer) is nn.Conv2d:
                fine = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
            if not fine:
                raise InputError(f"no per-row clipping for {layer}; use Linear, Conv2d in one group, ReLU, pooling")
        weighted = {place for place, layer in enumerate(self.layers) if type(layer) in (nn.Linear, nn.Conv2d)}
        if not self.frozen_layers < weighted:
            given = sorted(self.frozen_layers)
            raise InputError(f"frozen_layers={given}: choose some, not all, of the layers {sorted(weighted)}")

    def _measure(self) -> tuple[int, int]:
        """Number of classes, and a generous guess of the bytes that one row takes in `_add`."""
        kept: list[Any] = []
        logits = self._forward(torch.zeros(2, *self.shape, dtype=self.dtype), self._unpack(self.get()), kept)
        if any(out.dim() != 2 or len(out) != 2 for out in (logits, *(k[2] for k in kept if type(k[0]) is nn.Linear))):
            raise InputError("linear layers need one vector a row, and the network must end in one: put Flatten before")
        floats = sum(3 * a[0].numel() + 4 * out[0].numel() for _, a, out in kept)
        convolutions = [(layer.weight, out) for layer, _, out in kept if isinstance(layer, nn.Conv2d)]
        floats += sum(2 * w.numel() + w[0].numel() * out[0, 0].numel() for w, out in convolutions)
        return logits.shape[1], floats * torch.finfo(self.dtype).bits // 8


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _without(x: Tensor, rows: Tensor) -> Tensor:
    return x.masked_fill(rows.reshape(-1, *[1] * (x.dim() - 1)), 0.0)


def _squares(x: Tensor) -> Tensor:
    """Squared lengths of rows (n, numbers), in double precision."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return lengths.square()


def _flat(pieces: list[Tensor]) -> Vector:
    return np.asarray(torch.cat([p.detach().reshape(-1) for p in pieces]))


def _row_gradients(x: Tensor, g: Tensor, layer: nn.Conv2d) -> Tensor:
    """Of the kernel, (rows, out channels, height * width * channels); g is (rows, positions, out channels)."""
    (top, left), (down, across) = (int(p) for p in layer.padding), layer.stride
    (kh, kw), (eh, ew) = layer.kernel_size, layer.dilation
    if layer.in_channels < 4:  # runs of so few channels copy slowly; torch's own unfolding has them outermost
        seen = F.unfold(x, layer.kernel_size, layer.dilation, (top, left), layer.stride)
        return torch.bmm(seen, g).reshape(len(x), layer.in_channels, kh * kw, g.shape[2]).permute(0, 3, 2, 1).flatten(2)
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
    windows = x.unfold(1, eh * (kh - 1) + 1, down).unfold(2, ew * (kw - 1) + 1, across)[..., ::eh, ::ew]
    return torch.bmm(g.transpose(1, 2), windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2))
