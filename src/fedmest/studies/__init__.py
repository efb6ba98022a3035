"""The paper's simulations: studies by id. A new one is a file that describes it, and its name in the line below."""

from fedmest.errors import InputError
from fedmest.studies import anatomy, compare, equal, fixed_total, iterations, random
from fedmest.studies.base import Study

STUDIES: dict[str, Study] = {
    study.id: study
    for module in (equal, random, compare, iterations, fixed_total, anatomy)
    for study in module.STUDIES
}


def study_named(name: str) -> Study:
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose from {', '.join(STUDIES)}")
    return STUDIES[name]
