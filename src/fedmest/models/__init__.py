"""The models, by name. A new one is a file with a subclass of Model and a line here."""

from collections.abc import Callable

from fedmest.errors import InputError
from fedmest.models.base import CLIPS, Clipping, Model
from fedmest.models.glm import GLM
from fedmest.models.linear import Linear
from fedmest.models.logistic import Logistic
from fedmest.models.multinomial import Multinomial
from fedmest.models.neural import NetworkModel, cifar_cnn, mnist_cnn
from fedmest.models.poisson import Poisson

MODELS: dict[str, Callable[[], Model]] = {
    **{m.name: m for m in (Linear, Logistic, Poisson, Multinomial)},
    "mnist-cnn": mnist_cnn,
    "cifar-cnn": cifar_cnn,
}


def model_named(name: str) -> Model:
    if name not in MODELS:
        raise InputError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name]()


__all__ = ["CLIPS", "GLM", "MODELS", "Clipping", "Model", "NetworkModel", "model_named"]
