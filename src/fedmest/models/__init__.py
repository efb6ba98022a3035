"""The models, by name. A new one is a file with a subclass of GLM and a line here."""

from fedmest.errors import InputError
from fedmest.models.glm import GLM, Clipping
from fedmest.models.linear import Linear
from fedmest.models.logistic import Logistic
from fedmest.models.multinomial import Multinomial
from fedmest.models.poisson import Poisson

MODELS: dict[str, type[GLM]] = {m.name: m for m in (Linear, Logistic, Poisson, Multinomial)}


def model_named(name: str) -> GLM:
    if name not in MODELS:
        raise InputError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name]()


__all__ = ["GLM", "MODELS", "Clipping", "model_named"]
