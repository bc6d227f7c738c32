"""The median equals NumPy's, whose own call loads a package that nothing else needs."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from probe.detectors.medians import median_of, median_of_known


@example(np.array([8.98846567431158e307]))
@example(np.array([[1e308, -1e308], [1e308, 2.0], [1e308, 3.0]]))
@given(arrays(np.float64, array_shapes(max_dims=2, min_side=0, max_side=9), elements=st.floats(width=64)))
def test_median_equals_that_of_numpy(values: np.ndarray) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(median_of(values), np.median(values))
        if values.ndim == 2 and all(values.shape):
            np.testing.assert_array_equal(median_of(values, axis=0), np.median(values, axis=0))


@given(
    arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9),
        elements=st.floats(-1e9, 1e9, width=32) | st.just(np.nan),
    )
)
def test_median_of_what_is_known_equals_that_of_numpy(values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(median_of_known(values), np.nanmedian(values, axis=0))


@pytest.mark.parametrize("values", [[3, 1, 2], [4, 1, 2, 3], (2.5,), [np.float32(1), np.float32(2)]])
def test_median_of_a_sequence(values: list[float]) -> None:
    assert median_of(values) == np.median(values)


def test_mean_of_the_largest_numbers_warns_nobody() -> None:
    assert median_of([1e308, 1.5e308]) == np.inf


@pytest.mark.parametrize(
    "calls",
    [
        "from probe.detectors.medians import median_of; median_of([1.0, 2.0])",
        "from probe.detectors.medians import median_of_known; median_of_known(np.ones((9, 9)))",
        "from probe.detectors.initialization import _by_depth as f; f(np.ones(9), np.arange(9))",
        "np.setdiff1d(np.arange(9), np.arange(3), assume_unique=True)",
    ],
)
def test_detectors_load_no_masked_arrays(calls: str) -> None:
    code = f"import sys; import numpy as np; {calls}; sys.exit('numpy.ma' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0
