"""The methods, by id. A new one is a file with a subclass of Method and a line here."""

from fedmest.errors import InputError
from fedmest.methods.base import CALIBRATIONS, WEIGHTS, Method, Moves, NotTraced, Record, Server, Setting, Step
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
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = [
    "CALIBRATIONS", "METHODS", "WEIGHTS", "Method", "Moves", "NotTraced", "Record", "Server", "Setting", "Step",
    "method_named",
]  # fmt: skip
