"""Clipped sums of networks against a loop that asks torch for each row's gradient on its own."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need torch, an optional extra")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from fedmest.core.exceptions import InputError  # noqa: E402
from fedmest.models.grad_sample import GradSampleNetwork, cifar_net, mnist_net, need_torch  # noqa: E402

PAPER = {"mnist": (mnist_net, (1, 28, 28), 421_642), "cifar": (cifar_net, (3, 32, 32), 620_362)}
SMALL = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 3)), (5,)),
    "linear without bias": (lambda: nn.Sequential(nn.Linear(5, 3, bias=False)), (5,)),
    "two linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), (1, 3, 3)),
    "conv over many channels": (lambda: nn.Sequential(nn.Conv2d(6, 2, 3), nn.AvgPool2d(2), nn.Flatten()), (6, 6, 6)),
    "conv over channels": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.AvgPool2d(2), nn.Flatten()), (3, 6, 6)),
    "conv without bias": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.Flatten()), (2, 4, 4)),
    "stride and padding": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), nn.Tanh(), nn.Flatten()),
        (2, 7, 6),
    ),
    "dilation": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=2, dilation=2), nn.Flatten()), (2, 5, 6)),
    "all of them, many channels": (
        lambda: nn.Sequential(nn.Conv2d(5, 3, (2, 3), (1, 2), (1, 0), (1, 2)), nn.ReLU(), nn.Flatten()), (5, 6, 9),
    ),
    "conv, pool, conv, linear": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 3, 2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4),
        ), (2, 6, 6),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks wait for a second thread longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(build, shape, rows, double=True, **options):
    net = GradSampleNetwork(build(), shape, double=double, **options)
    rng = np.random.default_rng(3)
    return net, rng.standard_normal((rows, *shape)), rng.integers(0, net.classes, rows), net.initial(1)


def one_by_one(net, x, y, theta):
    """Each row's gradient by torch's own backward pass, in double precision."""
    reference = GradSampleNetwork(net.layers.double(), net.shape, double=True)
    reference.set(theta)
    grads = []
    for row, label in zip(x, y, strict=True):
        reference.layers.zero_grad()
        F.cross_entropy(reference.layers(torch.tensor(row[None])), torch.tensor([label])).backward()
        grads.append(np.concatenate([p.grad.numpy().ravel() for p in reference.layers.parameters()]))
    return np.array(grads)


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
def test_layers_against_loop(name, double):
    net, x, y, theta = problem(*SMALL[name], 9, double)
    grads = one_by_one(net, x, y, theta)
    norms = np.linalg.norm(grads, axis=1)
    for bound in (1e-6, float(np.median(norms)), 1e6, np.inf):
        total, found = net.clipped_sum(x, y, theta, bound)
        expected = (grads * np.minimum(1, bound / norms)[:, None]).sum(0)
        np.testing.assert_allclose(found, norms, rtol=1e-5)
        assert distance(total, expected) < 1e-5
        assert total.dtype == np.float64 and found.dtype == (np.float64 if double else np.float32)


@pytest.mark.parametrize("name", PAPER)
def test_paper_networks_against_loop(name):
    build, shape, size = PAPER[name]
    net, x, y, theta = problem(build, shape, 7)
    assert net.size == size == len(theta)
    grads = one_by_one(net, x, y, theta)
    norms = np.linalg.norm(grads, axis=1)
    bound = float(np.median(norms))
    total, found = net.clipped_sum(x, y, theta, bound)
    np.testing.assert_allclose(found, norms, rtol=1e-9)
    expected = (grads * np.minimum(1, bound / norms)[:, None]).sum(0)
    assert distance(total, expected) < 1e-9
    single = GradSampleNetwork(build(), shape)  # single precision: near-ties of the pooling may go the other way
    assert distance(single.clipped_sum(x, y, theta, bound)[0], expected) < 1e-4


@pytest.mark.parametrize("name", PAPER)
def test_no_bound_is_the_plain_gradient(name):
    build, shape, _ = PAPER[name]
    net, x, y, theta = problem(build, shape, 12, double=False)
    total, norms = net.clipped_sum(x, y, theta, np.inf)
    assert distance(total, net.gradient(x, y, theta)) < 1e-5
    assert distance(net.clipped_sum(x, y, theta, 2 * float(norms.max()))[0], total) < 1e-5


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
def test_no_row_exceeds_the_bound(double):
    net, x, y, theta = problem(*SMALL["conv, pool, conv, linear"], 15, double)
    for bound in (1e-6, 0.01, 0.3):
        for row in range(len(x)):
            alone = net.clipped_sum(x[row : row + 1], y[row : row + 1], theta, bound)[0]
            assert np.linalg.norm(alone.astype(float)) <= bound


def test_no_row_exceeds_the_bound_in_large_layers():
    net, x, y, theta = problem(mnist_net, (1, 28, 28), 6, double=False)
    for row in range(len(x)):
        alone = net.clipped_sum(x[row : row + 1], y[row : row + 1], theta, 0.7)[0].astype(float)
        assert 0.7 * (1 - 1e-5) < np.linalg.norm(alone) <= 0.7


def test_chunks_add_up_and_repeat():
    build, shape = SMALL["conv, pool, conv, linear"]
    net, x, y, theta = problem(build, shape, 23)
    total, norms = net.clipped_sum(x, y, theta, 0.5)
    for chunk in (1, 5, 23, 100):
        other, other_norms = GradSampleNetwork(build(), shape, chunk=chunk, double=True).clipped_sum(x, y, theta, 0.5)
        assert distance(other, total) < 1e-12
        np.testing.assert_allclose(other_norms, norms, rtol=1e-12)
    again = net.clipped_sum(x, y, theta, 0.5)
    assert again[0].tobytes() == total.tobytes() and again[1].tobytes() == norms.tobytes()


def test_memory_limits_the_chunk():
    layers = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 256, 3), nn.MaxPool2d(60), nn.Flatten())
    assert 1 <= GradSampleNetwork(layers, (3, 64, 64)).chunk < 40
    for build, shape, _ in PAPER.values():
        net = GradSampleNetwork(build(), shape)
        assert net.chunk >= 40 and net.chunk * net.row_bytes < 200 * 2**20


def test_theta_round_trip_and_left_alone():
    net, x, y, theta = problem(mnist_net, (1, 28, 28), 3, double=False)
    assert (theta == net.initial(1)).all() and (theta != net.initial(2)).any()
    values = np.arange(net.size, dtype=np.float32) / net.size
    net.set(values)
    assert (net.get() == values).all()
    assert (torch.cat([p.detach().ravel() for p in net.layers.parameters()]).numpy() == values).all()
    before = theta.copy()
    net.clipped_sum(x, y, theta, 1.0)
    net.gradient(x, y, theta)
    net.predict(x, theta)
    assert (theta == before).all() and (net.get() == values).all()


def test_rows_without_gradient():
    net, x, y, theta = problem(*SMALL["two linear"], 6)
    theta[:] = 0.0
    theta[-3:] = [900.0, 0.0, 0.0]  # sure of class 0 for every row: the loss is flat there
    total, norms = net.clipped_sum(x, np.zeros(6, int), theta, 1.0)
    assert (total == 0).all() and (norms == 0).all()
    assert np.isfinite(net.clipped_sum(np.zeros_like(x), y, np.zeros_like(theta), 1.0)[0]).all()


def test_rows_that_overflow_count_as_nothing():
    net, x, y, theta = problem(*SMALL["conv, pool, conv, linear"], 8, double=False)
    good = net.clipped_sum(x[1:7], y[1:7], theta, 0.1)[0]
    x[0], x[7, 0, 0, 0] = 1e38, np.nan
    total, norms = net.clipped_sum(x, y, theta, 0.1)
    assert np.isinf(norms[[0, 7]]).all() and np.isfinite(norms[1:7]).all()
    assert distance(total, good) < 1e-5
    assert not net.clipped_sum(x[[0, 7]], y[[0, 7]], theta, 0.1)[0].any()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("gap", [40.0, 46.0, 52.2, 60.0, 85.0], ids="gap {:g}".format)
def test_rows_so_long_that_gradients_whose_squares_vanish_matter_stay_within_the_bound(name, gap):
    """Probabilities down to 1e-37 in single precision, rows up to 1.8e19: the product is what is clipped."""
    net, _, _, theta = problem(*SMALL[name], 1, double=False)
    theta *= 1e-25
    if "without bias" not in name:
        theta[-list(net.layers.parameters())[-1].numel()] = gap  # the bias of the first class, or channel
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (1, *net.shape))
    for size in (1e-30, 1.0, 1e12, 1e17, 1e19, 1.8e19, 1e25, 1e38):
        x = size / np.sqrt(signs.size) * signs
        for bound in (1e-9, 1e-4, 1 / 16, 1.0):
            for label in range(net.classes):
                alone = np.linalg.norm(net.clipped_sum(x, [label], theta, bound)[0])
                assert alone <= bound, (size, bound, label)


def test_such_rows_are_clipped_and_not_left_out():
    net = GradSampleNetwork(nn.Sequential(nn.Linear(1, 10)), (1,))
    theta = np.zeros(net.size)
    theta[10] = 52.2  # each of the other classes has a chance of 2e-23, whose square is zero
    total, norms = net.clipped_sum([[1.8e19]], [0], theta, 1e-4)
    exact = 3 * np.exp(-52.2) * 1.8e19
    assert norms[0] == pytest.approx(exact, rel=0.01) and exact > 1e-3
    assert np.linalg.norm(total) == pytest.approx(1e-4, rel=1e-4)


def test_short_rows_under_large_weights_stay_within_the_bound():
    """No bias, which would outweigh the row: its square alone vanishes, and the gradient at the output is huge."""
    net = GradSampleNetwork(nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)), (2,))
    theta = np.concatenate([np.full(6, 1e-12), np.full(3, 1e28), np.full(3, -1e28), [23.03, 0.0]])
    for size in (1e-15, 1e-18, 3e-23, 1e-23, 1e-25, 1e-30, 1e-40):
        for label in (0, 1):
            assert np.linalg.norm(net.clipped_sum([[size, size]], [label], theta, 1e-9)[0]) <= 1e-9
    assert net.clipped_sum([[1e-23, 1e-23]], [0], theta, 1e-9)[1][0] > 1e-6  # far beyond the bound


def test_flushed_denormals_are_refused():
    net, x, y, theta = problem(*SMALL["linear"], 3, double=False)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(InputError, match=r"torch.set_flush_denormal\(False\)"):
            net.clipped_sum(x, y, theta, 1.0)
    finally:
        torch.set_flush_denormal(False)
    assert net.clipped_sum(x, y, theta, 1.0)[0].any()


@pytest.mark.parametrize("name", ["linear", "conv, pool, conv, linear"])
def test_no_rows(name):
    net, x, y, theta = problem(*SMALL[name], 1)
    total, norms = net.clipped_sum(x[:0], y[:0], theta, 1.0)
    assert not total.any() and len(norms) == 0 and not net.gradient(x[:0], y[:0], theta).any()


def test_prediction():
    net, x, y, theta = problem(mnist_net, (1, 28, 28), 90, double=False)
    net.set(theta)
    with torch.no_grad():
        logits = net.layers(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(net.log_probabilities(x.reshape(90, -1), theta), F.log_softmax(logits, 1), atol=1e-5)
    assert net.accuracy(x, net.predict(x, theta), theta) == 1.0
    assert net.accuracy(x, y, theta) == np.mean(net.predict(x, theta) == y)


def test_errors(monkeypatch):
    net, x, y, theta = problem(*SMALL["linear"], 4)
    with pytest.raises(InputError, match="theta has 17 values"):
        net.clipped_sum(x, y, theta[1:], 1.0)
    with pytest.raises(InputError, match="numbered 0 to 2"):
        net.clipped_sum(x, y + 3, theta, 1.0)
    with pytest.raises(InputError, match="one class for each row"):
        net.clipped_sum(x, y[1:], theta, 1.0)
    with pytest.raises(InputError, match="rows of shape"):
        net.predict(x[:, 1:], theta)
    for bound in (0.0, -1.0, np.nan):
        with pytest.raises(InputError, match="must be positive"):
            net.clipped_sum(x, y, theta, bound)
    with pytest.raises(InputError, match="must be at least 1e-10, not 1e-11"):
        net.clipped_sum(x, y, theta, 1e-11)
    grouped, same = nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding="same")
    for layer in (nn.BatchNorm2d(2), nn.Dropout(), nn.ReLU(inplace=True), grouped, same):
        with pytest.raises(InputError, match="no per-row clipping"):
            GradSampleNetwork(nn.Sequential(layer, nn.Flatten()), (2, 3, 3))
    for layers in ((nn.Linear(3, 2), nn.Flatten()), (nn.Conv2d(2, 2, 3),), (nn.Conv2d(2, 2, 3), nn.Flatten(0))):
        with pytest.raises(InputError, match="one vector a row"):
            GradSampleNetwork(nn.Sequential(*layers), (2, 3, 3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'fedmest\[neural\]'"):
        need_torch()


# -- layers that are held at their start --------------------------------------------------------------------------


def test_held_layers_are_no_part_of_theta_and_the_others_gradients_are_as_before():
    build, shape = SMALL["conv, pool, conv, linear"]
    whole, x, y, theta = problem(build, shape, 7)
    places = [place for place, layer in enumerate(whole.layers) if hasattr(layer, "weight")]
    frozen_layers = GradSampleNetwork(build(), shape, double=True, frozen_layers=(places[1],))
    kernel, bias = (p.numel() for p in whole.layers[places[1]].parameters())
    first = sum(p.numel() for p in whole.layers[places[0]].parameters())
    assert frozen_layers.size == whole.size - kernel - bias
    with torch.no_grad():  # give both the same middle layer
        for ours, theirs in zip(
            frozen_layers.layers[places[1]].parameters(), whole.layers[places[1]].parameters(), strict=True
        ):
            theirs.copy_(ours)
        theta = theta.copy()
        theta[first : first + kernel + bias] = np.concatenate(
            [p.detach().double().numpy().ravel() for p in frozen_layers.layers[places[1]].parameters()]
        )
    rest = np.delete(theta, np.s_[first : first + kernel + bias])
    grads = np.delete(one_by_one(whole, x, y, theta), np.s_[first : first + kernel + bias], axis=1)
    norms = np.linalg.norm(grads, axis=1)
    bound = float(np.median(norms))
    total, found = frozen_layers.clipped_sum(x, y, rest, bound)
    assert distance(found, norms) < 1e-9
    assert distance(total, (grads * np.minimum(1, bound / norms)[:, None]).sum(0)) < 1e-6
    assert distance(frozen_layers.log_probabilities(x, rest), whole.log_probabilities(x, theta)) < 1e-9


def test_held_layers_are_the_same_in_every_network_and_for_every_seed():
    build, shape = SMALL["two linear"]
    nets = [GradSampleNetwork(build(), shape, frozen_layers=(0,)) for _ in range(2)]
    nets[1].initial(5)
    ours, theirs = (net.layers[0].weight for net in nets)
    assert torch.equal(ours, theirs)


def test_all_layers_or_layers_without_weights_cannot_be_held():
    build, shape = SMALL["two linear"]
    for frozen_layers in ((1,), (0, 2), (9,)):
        with pytest.raises(InputError, match="frozen_layers="):
            GradSampleNetwork(build(), shape, frozen_layers=frozen_layers)
