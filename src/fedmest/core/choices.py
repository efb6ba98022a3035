"""Words that settings may be. They stand here so that the command line's help needs no compiled code."""

CALIBRATIONS = ("certified", "paper")
CLIP_RULES = ("consistent", "norm")
BUDGET_SCHEDULES = ("geometric", "uniform")
SCALINGS = ("auto", "bounds", "private", "data", "none")
AGGREGATION_WEIGHTS = ("size", "optimal")
COV_TYPES = ("auto", "nonrobust", "robust", "cluster", "none")
