"""The best certified network we know at mu = 2, a hundred sites with all of MNIST's training images; what levers gain.

    python benchmarks/recipe.py tune     # step size and momentum, on a stand-in
    python benchmarks/recipe.py mnist    # the table; FEDMEST_DATA names the folder that holds mnist/

The stand-in is scikit-learn's digits, blown up and shifted. It is public and has nothing to do with MNIST's writers, so
that no private row is looked at to choose. Every line of the table is a call of `fm.fit`; accuracies are those of all
10,000 test images. Same seed, same numbers.
"""

import argparse
import time

import numpy as np
from scipy.ndimage import shift, zoom

import fedmest as fm
from fedmest.data import datasets as data
from fedmest.models.grad_sample import mnist_net
from fedmest.studies.sources.images import scaled

SITES, ROWS, MU = 100, 600, 2.0
WIDE = 7  # the layer of 401,536 of the network's 421,642 weights
PLAIN = {"K": 300, "eta": 1.0, "clip_norm": 0.3, "participation": 0.01}
OURS = {**PLAIN, "momentum": 0.9, "average": 1}
PAPER = {"K": 10, "R": 10, "eta": 0.01, "clip_norm": 1.0, "participation": 0.1}
LINES = (  # what a line adds, method, calibration, layers held, settings
    ("the paper's FedAvg", "fedavg", "paper", (), PAPER),
    ("balanced participation, each site spends on its own rounds only", "fedavg", "certified", (), PAPER),
    ("gradients instead of local steps, as many", "fedsgd", "certified", (),
     {"K": 100, "eta": 0.01, "clip_norm": 1.0, "participation": 0.1}),
    ("step size and clip norm, three gradients per site, one site per round", "fedsgd", "certified", (), PLAIN),
    ("momentum", "fedsgd-m", "certified", (), OURS),
    ("the widest layer held at its random start", "fedsgd-m", "certified", (WIDE,), OURS),
    ("mean of the last 30 iterates", "fedsgd-m", "certified", (WIDE,), {**OURS, "average": 30}),
)  # fmt: skip


def stand_in(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits of 8 x 8 made 20 x 20, put at random places of 28 x 28; training digits or others by the sign of seed."""
    found, rng = data.load("digits"), np.random.default_rng(abs(seed))
    own = np.arange(found.n_train) if seed > 0 else np.arange(found.n_train, len(found.labels))
    chosen = rng.choice(own, rows)
    large = {i: zoom(found.pixels[i].reshape(8, 8) / 255.0, 2.5, order=1) for i in np.unique(chosen)}
    images = np.zeros((rows, 28, 28))
    for image, i in zip(images, chosen, strict=True):
        image[4:24, 4:24] = large[i]
        image[:] = shift(image, rng.integers(-3, 4, 2), order=0)
    return 2.0 * images.reshape(rows, -1).clip(0, 1) - 1.0, found.labels[chosen]


def accuracy(
    method: str, calibration: str, frozen_layers: tuple[int, ...], train, test, seed: int = 1, **settings
) -> float:  # type: ignore[no-untyped-def]
    X, y = train
    federation = fm.Federation.from_arrays(X, y, np.arange(len(y)) % SITES, degenerate="keep")
    model = fm.NetworkModel(mnist_net, (1, 28, 28), "mnist-cnn", frozen_layers)
    result = fm.fit(federation, model, method, MU, calibration=calibration, seed=seed, **settings)
    assert result.privacy.certified == (calibration == "certified") and result.privacy.mu <= MU * (1 + 1e-12)
    return float(np.mean(result.predict(test[0]).argmax(axis=1) == test[1]))


def tune() -> None:
    train, test = stand_in(SITES * ROWS, 1), stand_in(2000, -1)
    print("the widest layer held, mean of the last 30 iterates; accuracy on 2,000 other digits\n")
    print("| K | eta | momentum | accuracy |\n|---|---|---|---|")
    for K, eta, momentum in ((300, 0.5, 0.9), (300, 1.0, 0.9), (300, 2.0, 0.8), (300, 2.0, 0.9), (300, 4.0, 0.9)):
        chosen = {"K": K, "eta": eta, "momentum": momentum, "average": 30}
        got = accuracy("fedsgd-m", "certified", (WIDE,), train, test, **{**OURS, **chosen})
        print(f"| {K} | {eta:g} | {momentum:g} | {got:.3f} |", flush=True)


def mnist(only: list[int], seeds: int) -> None:
    found = data.load("mnist")
    n = found.n_train
    order = np.random.default_rng(0).permutation(n)
    train = scaled(found.pixels[:n][order]), found.labels[:n][order]
    test = scaled(found.pixels[n:]), found.labels[n:]
    print("| # | line by line | calibration | test accuracy | minutes |\n|---|---|---|---|---|")
    for number, (what, method, calibration, frozen_layers, settings) in enumerate(LINES, start=1):
        if only and number not in only:
            continue
        start = time.perf_counter()
        got = [
            accuracy(method, calibration, frozen_layers, train, test, seed, **settings) for seed in range(1, seeds + 1)
        ]
        minutes = (time.perf_counter() - start) / 60 / seeds
        text = " ".join(f"{a:.4f}" for a in got)
        print(f"| {number} | {what} | {calibration} | {text} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tune", "mnist"))
    parser.add_argument("--lines", type=int, nargs="*", default=[], help="only these lines of the table")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each line")
    arguments = parser.parse_args()
    tune() if arguments.what == "tune" else mnist(arguments.lines, arguments.seeds)
