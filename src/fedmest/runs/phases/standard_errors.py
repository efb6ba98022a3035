"""The standard errors phase: the covariance of the estimate, from what the run released or from a round of its own."""

from collections.abc import Sequence

from fedmest.inference.covariance import Evidence, estimate_covariance
from fedmest.inference.routes import SHARE
from fedmest.privacy.budget import split
from fedmest.queries import ScoreMoments
from fedmest.queries.schedule import Step
from fedmest.runs.phases.base import Phase, PhaseRunner, PublicSpec
from fedmest.runs.phases.estimation import EstimationPhase


class StandardErrorsPhase(Phase):
    """One round of curvature and score moments at the estimate, where the method's last step does not release them."""

    name = "standard errors"

    def share(self, spec: PublicSpec) -> float:
        return SHARE if spec.route.own_round else 0.0

    def plan(self, spec: PublicSpec, mu: float) -> list[Step]:
        context = spec.context
        return [Step(ScoreMoments(), split(mu, [1.0, 1.0])[:, None], context.everyone, context.weights())]

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        spec, records, last = runner.spec, tuple(runner.records), runner.last_replies
        released = None
        for step in steps:
            replies = runner.ask(step, runner.estimate)
            released = runner.last_record, replies
        history = runner.history
        own = [record for record in records if record.phase == EstimationPhase.name]
        previous = history[-2] if len(history) > 1 else 0 * runner.estimate
        evidence = Evidence(
            spec.route, spec.method, spec.context, spec.intercept, runner.estimate, previous, runner.penalty, own, last,
            released, spec.expected_bias,
        )  # fmt: skip
        runner.covariance = estimate_covariance(evidence)
