"""The phases of a run, in order. A new one is a file with a subclass of Phase and its place here."""

from fedmest.runs.phases.base import Phase, PhaseRunner, PublicSpec, PublicState, PublicValue
from fedmest.runs.phases.clip_norm import ClipNormPhase
from fedmest.runs.phases.estimation import EstimationPhase
from fedmest.runs.phases.scaling import ScalingPhase
from fedmest.runs.phases.standard_errors import StandardErrorsPhase

PHASES: list[Phase] = [ScalingPhase(), ClipNormPhase(), EstimationPhase(), StandardErrorsPhase()]


def public_values() -> dict[str, type[PublicValue]]:
    """The kinds of public values that phases leave behind, by name."""
    return {phase.value.name: phase.value for phase in PHASES if phase.value is not None}


__all__ = ["PHASES", "Phase", "PhaseRunner", "PublicSpec", "PublicState", "PublicValue", "public_values"]
