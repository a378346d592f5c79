"""A few predictions as they were when last meant to change; `scripts/write_golden` writes them anew."""

import json
from pathlib import Path

import pytest

import joulecast

ROWS = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))

#: Numbers may differ by this much between machines and versions of numpy.
TOLERANCE = 0.005


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['scenario']['model']}-{row['scenario']['gpu']}")
def test_a_prediction_is_what_it_was(row):
    options = dict(row["scenario"])
    (prediction,) = joulecast.predict(options.pop("model"), gpu=options.pop("gpu"), **options)

    found = {name: getattr(prediction, name).value for name in row["predicted"]}
    assert found == pytest.approx(row["predicted"], rel=TOLERANCE)
    assert prediction.bound_by == row["bound_by"]
