"""Coverage on rows to come, whatever the spread of the residuals."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.calibrate.intervals import HeldOutRows, fit_intervals
from joulecast.model.intervals import FEATURES


def drawn(random, n_rows, scale, slope, bias):
    host = random.uniform(0, 1, n_rows)
    features = {name: np.zeros(n_rows) for name in FEATURES} | {"host": host}
    return HeldOutRows(
        quantity=np.full(n_rows, "time"),
        log_ratio=bias + random.standard_t(4, n_rows) * scale * np.exp(slope * host),
        features=features,
        source=np.full(n_rows, "a"),
        group=(np.arange(n_rows) // 3).astype(str),
    )


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0.02, 0.3),
    slope=st.floats(-1.5, 1.5),
    bias=st.floats(-0.1, 0.1),
)
def test_a_90_percent_interval_holds_about_90_percent_of_rows_to_come(seed, scale, slope, bias):
    random = np.random.default_rng(seed)
    model = fit_intervals(drawn(random, 300, scale, slope, bias))
    fresh = drawn(random, 2000, scale, slope, bias)
    low, high = model.bounds("time", fresh.features)
    inside = np.mean((low <= fresh.log_ratio) & (fresh.log_ratio <= high))
    assert inside >= 0.82, "of 300 rows: 90 % less four standard errors of each tail"


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(0.25, 4.0))
def test_an_interval_scales_with_the_residuals(seed, factor):
    rows = drawn(np.random.default_rng(seed), 200, 0.2, 0.5, 0.0)
    scaled = HeldOutRows(
        quantity=rows.quantity,
        log_ratio=np.where(np.abs(rows.log_ratio) < 0.05, 0.05, rows.log_ratio),
        features=rows.features,
        source=rows.source,
        group=rows.group,
    )
    twice = HeldOutRows(
        quantity=scaled.quantity,
        log_ratio=scaled.log_ratio * factor,
        features=scaled.features,
        source=scaled.source,
        group=scaled.group,
    )
    one, other = (fit_intervals(r).bounds("time", rows.features) for r in (scaled, twice))
    np.testing.assert_allclose(other[1], factor * one[1], rtol=0.02)
