"""Results whose pages are read as text and opened in a browser."""

import fedmest as fm
from conftest import simulate


def reported() -> dict[str, fm.Result]:
    logistic, classes = simulate("logistic", 6, 500, seed=2).fed, simulate("multinomial", 3, 400, seed=1).fed
    return {
        "certified": fm.fit(logistic, "logistic", "fednewton", 2.0, seed=1),
        "without errors": fm.fit(logistic, "logistic", "fedsgd", 2.0, seed=1),
        "paper": fm.fit(logistic, "logistic", "fedsgd", 2.0, calibration="paper", seed=1),
        "not private": fm.fit(logistic, "logistic", "np-pooled"),
        "classes": fm.fit(classes, "multinomial", "fedirls", 3.0, seed=1),
    }
