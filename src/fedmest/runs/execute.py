"""The order of a run, written once: phases one after the other, whoever the backend asks; then the result."""

import math
from functools import partial

from fedmest.core.typing import FloatArray
from fedmest.privacy.accountant import account
from fedmest.privacy.report import PrivacyReport, ReleaseRecord
from fedmest.queries.schedule import RoundRecord
from fedmest.runs.aggregate import Aggregator
from fedmest.runs.backend import Backend
from fedmest.runs.checkpoint import Checkpoint
from fedmest.runs.communication import Communication, Round
from fedmest.runs.phases import PHASES
from fedmest.runs.phases.estimation import EstimationPhase
from fedmest.runs.result import Result
from fedmest.runs.runner import Callback, Run
from fedmest.runs.spec import RunSpec


def execute(
    spec: RunSpec,
    backend: Backend,
    *,
    seed: int | None = None,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    aggregator: Aggregator | None = None,
) -> Result:
    """Carry a spec out at a backend; replies are added up by weight unless another aggregator is given."""
    spec.check_budget()
    run = Run(spec, backend, aggregator=aggregator, callback=callback, checkpoint=checkpoint)
    for phase in PHASES:
        phase.run(run, spec.schedule.of(phase.name))
    params = run.estimate
    if spec.model.outputs > 1:
        params = params - params.mean(axis=0)
    return Result(
        spec.to_original(params, run.state),
        spec,
        run.state,
        privacy_report(run, backend.noise_caveat),
        _communication(run.records),
        tuple(spec.to_original(iterate, run.state) for iterate in run.history),
        run.covariance.transform(spec.to_original_matrix(run.state)),
        None if run.site_params is None else spec.to_original(run.site_params, run.state),
        seed,
    )


def _measure(record: RoundRecord, release: int) -> tuple[FloatArray, FloatArray]:
    return record.sensitivities[release], record.sds[release]


def privacy_report(run: Run, noise_caveat: str) -> PrivacyReport:
    """Walk the rounds that were carried out. There is no other description of the run."""
    context = run.context
    releases: list[ReleaseRecord] = []
    unproved: list[str] = list(run.caveats)
    spread = run.spec.route.cov_type == "cluster"  # whether or not it ended in standard errors: even that is published
    last = max((n for n, record in enumerate(run.records) if record.phase == EstimationPhase.name), default=-1)
    for number, record in enumerate(run.records):
        step, asked = record.step, record.asked
        unproved += [text for text in step.query.unproved if text not in unproved]
        for k, release in enumerate(step.query.releases()):
            measure = partial(_measure, record, k)
            releases.append(
                ReleaseRecord(number, step.query.name, release.what, release.part, asked.mus[k], asked.sites,
                              step.weights, step.query.additive_noise, measure, spread and number == last)
            )  # fmt: skip
    total, purposes = account(tuple(releases), len(context.sizes))
    private = math.isfinite(total)
    certified = private and not unproved and context.calibration == "certified"
    if private and context.paper and context.participation < 1:
        unproved.append(
            "Noise was drawn as if every site took part in every round, as in the paper; mu counts the rounds that a "
            "site did answer."
        )
    if private and noise_caveat:
        unproved.append(noise_caveat)
    return PrivacyReport(total, tuple(releases), tuple(unproved), certified, by_purpose=purposes)


def _communication(records: list[RoundRecord]) -> Communication:
    rounds = []
    for r in records:
        count = len(r.step.sites)
        rounds.append(Round(r.step.query.name, count, r.floats_up * count, r.floats_down * count))
    return Communication(tuple(rounds))
