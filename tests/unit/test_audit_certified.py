"""A certified claim of every method stands the audit; every model's is in tests/statistical."""

import pytest

import fedmest as fm
from audits import MU, ONE_EACH, options


@pytest.mark.parametrize(("method", "model"), ONE_EACH)
def test_no_attack_refutes_a_certified_claim(method: str, model: str) -> None:
    found = fm.audit(method, model, MU, games=2000, **options(method))
    assert found.mu_claimed == pytest.approx(MU, rel=1e-12)
    assert found.certified
    assert not found.refuted
    assert found.mu_exact is None or found.mu_exact <= MU * (1 + 1e-9)
