"""Differentially private federated M-estimation."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmest.auditing import audit
    from fedmest.errors import InputError
    from fedmest.estimators import FederatedLinearRegression as FederatedLinearRegression  # an extra: not in __all__
    from fedmest.estimators import FederatedLogisticRegression as FederatedLogisticRegression
    from fedmest.estimators import FederatedPoissonRegressor as FederatedPoissonRegressor
    from fedmest.federation import Federation
    from fedmest.fitting import compare, fit
    from fedmest.methods import METHODS
    from fedmest.models import MODELS, NetworkModel
    from fedmest.planner import plan
    from fedmest.result import Result

__version__ = "0.1.0"
__all__ = [
    "METHODS", "MODELS", "Federation", "InputError", "NetworkModel", "Result", "audit", "compare", "fit", "plan",
]  # fmt: skip

# compiled loops load with the first name that needs them, so that `import fedmest` and `fedmest --help` answer at once
_HOMES = {
    "METHODS": "methods", "MODELS": "models", "Federation": "federation", "InputError": "errors", "Result": "result",
    "NetworkModel": "models", "audit": "auditing", "compare": "fitting", "fit": "fitting", "plan": "planner",
    "FederatedLinearRegression": "estimators", "FederatedLogisticRegression": "estimators",
    "FederatedPoissonRegressor": "estimators",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmest' has no attribute {name!r}")
    if _HOMES[name] == "estimators" and find_spec("sklearn") is None:
        raise AttributeError(f"fedmest.{name} needs scikit-learn: pip install 'fedmest[sklearn]'")
    return getattr(import_module(f"fedmest.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
