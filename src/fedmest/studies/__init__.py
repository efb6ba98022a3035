"""The paper's experiments: studies by id. A new one is a file that describes it, and its name in the line below."""

from fedmest.core.exceptions import InputError
from fedmest.studies.base import Study
from fedmest.studies.definitions import anatomy, compare, equal, fixed_total, iterations, networks, pixels, random

STUDIES: dict[str, Study] = {
    study.id: study
    for module in (equal, random, compare, iterations, fixed_total, anatomy, pixels, networks)
    for study in module.STUDIES
}


def studies_named(name: str) -> list[Study]:
    """The study with this id, or all whose ids begin with it: `logistic`, `cnn-samples`."""
    found = [study for id, study in STUDIES.items() if id == name or id.startswith(f"{name}-")]
    if not found:
        raise InputError(f"there is no study {name!r}; choose from {', '.join(STUDIES)}")
    return found
