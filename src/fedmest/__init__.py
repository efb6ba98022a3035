"""Differentially private federated M-estimation."""

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.fitting import compare, fit
from fedmest.methods import METHODS
from fedmest.models import MODELS
from fedmest.result import Result

__version__ = "0.1.0"
__all__ = ["METHODS", "MODELS", "Federation", "InputError", "Result", "compare", "fit"]
