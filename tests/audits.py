"""The cases of the audit, with few rounds."""

from fedmest.auditing import NETWORK, cases
from fedmest.methods import METHODS

CERTIFIED = sorted({(case.method, case.model) for case in cases(calibrations=["certified"]) if case.model != NETWORK})
ONE_EACH = list({method: (method, model) for method, model in reversed(CERTIFIED)}.values())[::-1]  # one model a method
QUICK = {"K": 4, "R": 2, "K1": 4, "K2": 4}
MU = 2.0


def options(method: str) -> dict[str, int]:
    return {k: v for k, v in QUICK.items() if k in METHODS[method].__dataclass_fields__}  # type: ignore[attr-defined]
