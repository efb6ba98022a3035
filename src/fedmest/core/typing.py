"""Types that every package shares."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Names = npt.NDArray[np.object_]
Bounds = dict[str, tuple[float, float]]  # declared ranges of columns, low and high
