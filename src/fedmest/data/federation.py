"""The rows of all sites, from arrays, a data frame or a file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.core.exceptions import InputError
from fedmest.core.text import listed, shorten
from fedmest.core.typing import Bounds, FloatArray, IntArray
from fedmest.data import readers, validation
from fedmest.data.packing import Rows, pack, repack
from fedmest.privacy.noise import Keys, site_keys


@dataclass(frozen=True)
class Federation:
    """Rows of several sites; made by `from_arrays`, `from_frame` or `read`.

    Site names, sizes, column names and categories are public; rows are not. Sites are kept in the order of their
    names, so that no result depends on the order in which rows arrive.

    Attributes
    ----------
    sites : array of str
        Site names, sorted.
    features : tuple of str
        Column names of the features, without an intercept.
    target : array
        Target of every row, sorted by site.
    target_name : str
        Column name of the target.
    bounds : dict
        Declared ranges (low, high) of columns by name.
    packed, offsets : array
        The rows, see `fedmest.data.packing`.

    Examples
    --------
    >>> fed = Federation.from_arrays([[0.5], [1.5], [2.5]], [0, 1, 1], ["b", "a", "b"])
    >>> fed.sites.tolist(), fed.sizes.tolist()
    (['a', 'b'], [1, 2])
    """

    packed: FloatArray = field(repr=False)
    offsets: IntArray = field(repr=False)
    target: npt.NDArray[Any] = field(repr=False)
    sites: npt.NDArray[np.object_]
    features: tuple[str, ...]
    target_name: str = "y"
    bounds: Bounds = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<Federation: {self.n_rows:,} rows at {self.n_sites:,} sites\n"
            f" sites: {listed(self.sites)}\n"
            f" features: {listed(self.features)}\n"
            f" target: {shorten(self.target_name)}\n"
            f" bounds: {listed(list(self.bounds)) or 'none declared'}>"
        )

    @property
    def sizes(self) -> IntArray:
        """Rows of each site."""
        return np.diff(self.offsets)

    @property
    def keys(self) -> Keys:
        """One 64-bit key per site, from its name alone."""
        return site_keys(self.sites)

    @property
    def n_rows(self) -> int:
        """Rows of all sites."""
        return int(self.offsets[-1])

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self.sites)

    @staticmethod
    def from_arrays(
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sites: npt.ArrayLike,
        *,
        features: Sequence[str] | None = None,
        bounds: Mapping[str, Any] | None = None,
        target_name: str = "y",
        degenerate: str = "error",
    ) -> "Federation":
        """Make a federation from a matrix, a target and a site label for every row.

        Parameters
        ----------
        X : array-like, shape (rows, features)
            Numbers, without an intercept column.
        y : array-like, shape (rows,)
            Target: numbers, or classes.
        sites : array-like, shape (rows,)
            Site of every row.
        features : sequence of str, optional
            Names of the columns of X; by default x1, x2, ...
        bounds : mapping, optional
            Public ranges by column name, `{"x1": (0, 100)}`; known before any row was read.
        target_name : str
            Name of the target.
        degenerate : {"error", "keep"}
            "keep" leaves constant and identical columns in, such as the pixels at the edge of images.

        Returns
        -------
        Federation

        Raises
        ------
        InputError
            If shapes do not fit, a value is missing or not finite, or lies outside its declared range.

        Examples
        --------
        >>> fed = Federation.from_arrays([[0.5], [1.5], [2.5]], [0, 1, 1], ["b", "a", "b"], features=["dose"])
        >>> fed.features, fed.n_rows
        (('dose',), 3)
        """
        if degenerate not in validation.DEGENERATE:
            raise InputError(f"degenerate={degenerate!r}: choose one of {', '.join(validation.DEGENERATE)}")
        values = validation.matrix(X)
        target, labels = validation.vector(y, "y", len(values)), validation.vector(sites, "sites", len(values))
        columns = values.shape[1]
        names = tuple(features) if features is not None else tuple(f"x{j + 1}" for j in range(columns))
        if len(names) != columns:
            raise InputError(f"{len(names)} feature names for {columns} columns of X; give one per column")
        validation.check_unique(names)
        declared = validation.declared_bounds(bounds or {}, names, target_name)
        codes, labels = validation.site_codes(labels)
        validation.check_features(values, names, declared, codes, labels, keep=degenerate == "keep")
        validation.check_target(target, target_name, declared, codes, labels)
        if (np.diff(codes) >= 0).all():
            order = np.arange(len(codes), dtype=np.int64)
        else:
            order = np.argsort(codes, kind="stable").astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(labels))))).astype(np.int64)
        packed = np.empty(len(values) * (columns + 1))
        pack(values if values.flags.writeable else values.copy(), order, offsets, packed)
        return Federation(packed, offsets, target[order], labels, names, target_name, declared)

    @staticmethod
    def from_frame(
        frame: pd.DataFrame,
        target: str,
        site: str,
        *,
        features: Sequence[str] | None = None,
        ignore: Iterable[str] = (),
        bounds: Mapping[str, Any] | None = None,
        missing: str = "error",
    ) -> "Federation":
        """Make a federation from a data frame with one row per record.

        Text and categorical columns become 0/1 indicators `column=level`, the first level left out; levels count as
        public.

        Parameters
        ----------
        frame : pandas.DataFrame
            All rows of all sites.
        target, site : str
            Columns of the target and of the site labels.
        features : sequence of str, optional
            Columns to use; by default all others.
        ignore : iterable of str
            Columns to leave out.
        bounds : mapping, optional
            Public ranges by column name, `{"age": (0, 100)}`; known before any row was read.
        missing : {"error", "drop"}
            "drop" leaves out rows with a missing value.

        Returns
        -------
        Federation

        Raises
        ------
        InputError
            If a column is absent, constant or not usable, or a value is missing or outside its declared range.

        Examples
        --------
        >>> frame = pd.DataFrame({"age": [40, 60, 50], "ill": [0, 1, 1], "hospital": ["a", "a", "b"]})
        >>> Federation.from_frame(frame, "ill", "hospital", bounds={"age": (0, 100)}).features
        ('age',)
        """
        if missing not in validation.MISSING:
            raise InputError(f"missing={missing!r}: choose one of {', '.join(validation.MISSING)}")
        validation.check_unique([str(c) for c in frame.columns])
        frame = frame.rename(columns=str)
        wanted = validation.choose_columns(frame, target, site, features, ignore)
        frame = frame[[target, site, *wanted]]
        if missing == "drop":
            frame = frame.dropna()
        if len(frame) == 0:
            raise InputError("there are no rows" + (" without a missing value" if missing == "drop" else ""))
        labels = frame[site]
        validation.check_sites(labels)
        columns, names, implied = validation.encode(frame[wanted], labels)
        return Federation.from_arrays(
            columns,
            validation.target_values(frame[target], labels),
            labels.to_numpy(),
            features=names,
            bounds={**implied, **(bounds or {})},
            target_name=target,
        )

    @staticmethod
    def read(path: str | Path, target: str, site: str, **options: Any) -> "Federation":
        """Read a federation from a CSV or Parquet file.

        Parameters
        ----------
        path : str or Path
            The file.
        target, site : str
            Columns of the target and of the site labels.
        **options
            As in `from_frame`.

        Returns
        -------
        Federation

        Raises
        ------
        InputError
            If the file cannot be read, or its columns cannot be used.
        """
        return Federation.from_frame(readers.read_frame(path), target, site, **options)

    def rows(self, y: FloatArray, centre: FloatArray, scale: FloatArray, intercept: bool) -> Rows:
        """Packed rows with scaled features; no copy where nothing changes.

        Parameters
        ----------
        y : FloatArray
            Target as numbers.
        centre, scale : FloatArray
            Features are shifted by `centre` and divided by `scale`.
        intercept : bool
            Whether rows keep their column of ones.

        Returns
        -------
        Rows
        """
        columns = len(self.features) + 1
        if intercept and not centre.any() and (scale == 1.0).all():
            return Rows.of(self.packed, self.offsets, columns, y)
        skip = 0 if intercept else 1
        packed = np.empty(self.n_rows * (columns - skip))
        shift, divisor = np.concatenate(([0.0], centre)), np.concatenate(([1.0], scale))
        order = np.arange(self.n_rows, dtype=np.int64)
        repack(self.packed, self.offsets, columns, order, self.offsets, shift, divisor, skip, packed)
        return Rows.of(packed, self.offsets, columns - skip, y)

    def design(self) -> FloatArray:
        """All rows of all sites as a plain matrix with the intercept column first, in packed order."""
        columns = len(self.features) + 1
        return Rows(self.packed, self.offsets, columns, np.empty(self.n_rows), np.empty(0)).matrix()
