"""Differentially private federated M-estimation."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmest import methods, models
    from fedmest.auditing import AuditResult, audit
    from fedmest.core.exceptions import (
        ConvergenceError,
        FedmestError,
        InputError,
        NoStandardErrors,
        QuorumError,
        ScheduleError,
    )
    from fedmest.data.federation import Federation
    from fedmest.data.realistic import RealisticTable, realistic_table
    from fedmest.interface.estimators import FederatedLinearRegression as FederatedLinearRegression  # an extra
    from fedmest.interface.estimators import FederatedLogisticRegression as FederatedLogisticRegression
    from fedmest.interface.estimators import FederatedPoissonRegressor as FederatedPoissonRegressor
    from fedmest.interface.estimators import FederatedRegressor as FederatedRegressor
    from fedmest.methods import METHODS
    from fedmest.models import MODELS, NetworkModel
    from fedmest.privacy.report import PrivacyReport
    from fedmest.runs.comparison import Comparison
    from fedmest.runs.fit import compare, fit
    from fedmest.runs.plan import Plan
    from fedmest.runs.planning import plan
    from fedmest.runs.result import Result
    from fedmest.runs.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "METHODS", "MODELS", "AuditResult", "Comparison", "ConvergenceError", "Federation", "FedmestError", "InputError",
    "NetworkModel", "NoStandardErrors", "Plan", "PrivacyReport", "QuorumError", "RealisticTable", "Result",
    "ScheduleError", "Settings", "audit", "compare", "fit", "methods", "models", "plan", "realistic_table",
]  # fmt: skip

# compiled loops load with the first name that needs them, so that `import fedmest` and `fedmest --help` answer at once
_HOMES = {
    "auditing": ("AuditResult", "audit"),
    "core.exceptions": (
        "ConvergenceError", "FedmestError", "InputError", "NoStandardErrors", "QuorumError", "ScheduleError",
    ),
    "data.federation": ("Federation",),
    "data.realistic": ("RealisticTable", "realistic_table"),
    "interface.estimators": (
        "FederatedLinearRegression", "FederatedLogisticRegression", "FederatedPoissonRegressor", "FederatedRegressor",
    ),
    "methods": ("METHODS",),
    "models": ("MODELS", "NetworkModel"),
    "privacy.report": ("PrivacyReport",),
    "runs.comparison": ("Comparison",),
    "runs.fit": ("compare", "fit"),
    "runs.planning": ("plan",),
    "runs.plan": ("Plan",),
    "runs.result": ("Result",),
    "runs.settings": ("Settings",),
}  # fmt: skip
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("methods", "models"):
        return import_module(f"fedmest.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fedmest' has no attribute {name!r}")
    if _MODULES[name] == "interface.estimators" and find_spec("sklearn") is None:
        raise AttributeError(f"fedmest.{name} needs scikit-learn: pip install 'fedmest[sklearn]'")
    return getattr(import_module(f"fedmest.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
