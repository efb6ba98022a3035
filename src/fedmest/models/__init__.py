"""The models, by name. A new regression is a file with a `Family` and an entry in `FAMILIES`."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedmest.core.exceptions import InputError
from fedmest.models.base import Model
from fedmest.models.clipping import Clipping
from fedmest.models.family import AuditResponses, Family, FamilyParam, PlanDefaults
from fedmest.models.glm import GLM
from fedmest.models.linear import LINEAR
from fedmest.models.logistic import LOGISTIC
from fedmest.models.multinomial import MULTINOMIAL
from fedmest.models.negative_binomial import NEGATIVE_BINOMIAL
from fedmest.models.network import NetworkModel, cifar_cnn, mnist_cnn
from fedmest.models.poisson import POISSON

FAMILIES = (LINEAR, LOGISTIC, POISSON, MULTINOMIAL, NEGATIVE_BINOMIAL)
MODELS: dict[str, Callable[..., Model]] = {
    **{family.name: partial(GLM.create, family) for family in FAMILIES},
    "mnist-cnn": mnist_cnn,
    "cifar-cnn": cifar_cnn,
}


def model_named(text: str, **params: object) -> Model:
    """The model of a name, with the parameters of its family.

    Parameters
    ----------
    text : str
        A key of `MODELS`. Where only a text can be given (command line, study files), parameters may stand in it.
    **params : float
        Parameters of the family; those left out have their defaults.

    Returns
    -------
    Model

    Raises
    ------
    InputError
        Where there is no such model or parameter, or a value makes no sense.

    Examples
    --------
    >>> model_named("negative-binomial", dispersion=0.5) == model_named("negative-binomial(dispersion=0.5)")
    True
    """
    name, given = text, dict(params)
    if found := re.fullmatch(r"([^()]+)\(([^()]*)\)", text):
        name = found[1].strip()
        for part in filter(None, (part.strip() for part in found[2].split(","))):
            key, _, value = (piece.strip() for piece in part.partition("="))
            try:
                given[key] = float(value)
            except ValueError:
                raise InputError(f"model {text!r}: write parameters as {name}(name=number)") from None
    if name not in MODELS:
        raise InputError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    try:
        return MODELS[name](**given)
    except TypeError:
        raise InputError(f"the {name} model has no parameter {next(iter(given), '')!r}") from None


def model_from_json(given: Mapping[str, Any]) -> Model:
    """Model that `Model.to_json` wrote.

    Parameters
    ----------
    given : mapping
        Its entries: model, classes, and params where the family has any.

    Returns
    -------
    Model

    Raises
    ------
    InputError
        If there is no such model, or its parameters are not possible.
    """
    if given["model"] not in MODELS:  # parameters stand in "params" alone, where whoever reads a spec looks for them
        raise InputError(f"there is no model {given['model']!r}; choose one of {', '.join(MODELS)}")
    return model_named(given["model"], **given.get("params", {})).with_classes(tuple(given["classes"]))


__all__ = [
    "FAMILIES", "GLM", "LINEAR", "LOGISTIC", "MODELS", "MULTINOMIAL", "POISSON",
    "AuditResponses", "Clipping", "Family", "FamilyParam", "Model", "NetworkModel", "PlanDefaults", "model_from_json",
    "model_named",
]  # fmt: skip
