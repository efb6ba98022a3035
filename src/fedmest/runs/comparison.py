"""What `compare` returns."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fedmest.core.text import listed, shorten
from fedmest.runs.result import Result


class Comparison(Mapping[str, Result]):
    """Fits of the same data by several methods, by id.

    Parameters
    ----------
    results : mapping of str to Result
        At least one fit, by the id of its method.
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, method: str) -> Result:
        return self._results[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        first = next(iter(self.values()))
        mus = listed([f"{name} {result.privacy.mu:.3g}" for name, result in self.items()], 200)
        return (
            f"<Comparison: {shorten(first.model.label)}, {len(self)} methods\n"
            f" {first.n_rows:,} rows at {first.n_sites:,} sites\n mu: {mus}>"
        )

    def summary_frame(self) -> pd.DataFrame:
        """Coefficients side by side, one column per method."""
        return pd.DataFrame({name: result.params for name, result in self.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        first = next(iter(self.values()))
        return {"model": first.model.label, "methods": {name: result.to_dict() for name, result in self.items()}}

    def to_html(self) -> str:
        """A self-contained page."""
        from fedmest.interface.pages import compare_page

        first = next(iter(self.values()))
        return compare_page(f"{first.model.label} regression of {first.spec.data.target_name}", self)
