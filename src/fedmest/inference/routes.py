"""Which route to standard errors a run has; chosen from its schedule before anything is spent."""

from collections.abc import Collection
from dataclasses import dataclass

from fedmest.core.exceptions import InputError
from fedmest.queries import Role

MIN_SITES = 20  # whose spread says something
MAX_PARAMETERS = 300
SHARE = 0.05  # of mu^2, where a round of its own is asked for standard errors


@dataclass(frozen=True)
class CovarianceRoute:
    """How standard errors are computed.

    Parameters
    ----------
    cov_type : str
        "nonrobust", "robust", "cluster" or "none".
    own_round : bool
        Whether an extra round, with a share of the budget, releases what they need.
    reason : str
        Why there are none, and what would help.
    affordable : bool
        Whether ``cov_type="nonrobust"`` would estimate them privately where none are free.
    """

    cov_type: str
    own_round: bool = False
    reason: str = ""
    affordable: bool = False


def choose_route(
    cov_type: str,
    roles: Collection[Role],
    *,
    method: str,
    dispersion_known: bool,
    n_sites: int,
    private: bool,
    gap: str | None,
) -> CovarianceRoute:
    """Route to the standard errors of a run.

    Parameters
    ----------
    cov_type : str
        As asked for; "auto" takes whatever is free.
    roles : collection of Role
        What the method's last step releases.
    method : str
        Its id, for messages.
    dispersion_known : bool
        Whether the model determines the variance of responses.
    n_sites : int
        Number of sites.
    private : bool
        Whether releases are noised; without noise, a round costs nothing.
    gap : str or None
        Why no route leads to intervals; None if one may.

    Returns
    -------
    CovarianceRoute

    Raises
    ------
    InputError
        If the requested type is not possible.
    """
    if cov_type == "none":
        return CovarianceRoute("none", reason="no standard errors: none were asked for (cov_type='none')")
    solved = Role.RECORD_MOMENTS in roles
    ready = solved or (Role.CURVATURE in roles and dispersion_known)
    many = n_sites >= MIN_SITES and (Role.ESTIMATE in roles or {Role.GRADIENT, Role.CURVATURE} <= set(roles))
    if gap is None and cov_type == "auto":
        if ready or not private:
            return CovarianceRoute("nonrobust", own_round=not ready)
        if many:
            return CovarianceRoute("cluster")
        gap = (
            "it does not release what they need; cov_type='nonrobust' or 'robust' estimates that privately with "
            f"{100 * SHARE:.0f} % of mu^2"
        )
        return CovarianceRoute("none", reason=f"no standard errors for method {method!r}: {gap}", affordable=True)
    if gap is None and cov_type == "cluster" and not many:
        gap = f"it takes {MIN_SITES} sites or more that release estimates, or gradients with curvature"
    if gap is None and cov_type == "robust":
        return CovarianceRoute("cluster") if many else CovarianceRoute("robust", own_round=True)
    if gap is None:
        return CovarianceRoute(cov_type, own_round=cov_type == "nonrobust" and not ready)
    if cov_type != "auto":
        raise InputError(f"cov_type={cov_type!r} with method {method!r}: {gap}")
    return CovarianceRoute("none", reason=f"no standard errors for method {method!r}: {gap}")
