"""The methods, by id. A new one is a file with a subclass of Method and a line here."""

from fedmest.core.exceptions import InputError
from fedmest.methods.base import Method, NoiseModel, NoNoiseModel, Runner
from fedmest.methods.baselines import LocalFits, Pooled
from fedmest.methods.fedavg import FedAvg, NonPrivateFedAvg
from fedmest.methods.fedhybrid import FedHybrid
from fedmest.methods.fedirls import FedIRLS
from fedmest.methods.fednewton import FedNewton
from fedmest.methods.fednewton_nn import FedNewtonIter, FedNewtonNN
from fedmest.methods.fedsgd import FedSGD, FedSGDM
from fedmest.methods.fedstats import FedStats
from fedmest.methods.scaffold import NonPrivateScaffold, Scaffold

METHODS: dict[str, type[Method]] = {
    m.id: m
    for m in (
        FedSGD, FedSGDM, FedAvg, FedHybrid, FedNewton, FedIRLS, Scaffold, FedStats, FedNewtonNN, FedNewtonIter,
        Pooled, LocalFits, NonPrivateFedAvg, NonPrivateScaffold,
    )
}  # fmt: skip


def method_named(name: str) -> type[Method]:
    """Class of a method, by its id.

    Parameters
    ----------
    name : str
        An id: a key of `METHODS`.

    Returns
    -------
    type of Method

    Raises
    ------
    InputError
        If there is no such method.
    """
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "NoNoiseModel", "NoiseModel", "Runner", "method_named"]
