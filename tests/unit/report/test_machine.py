import csv
import io
import json

import pytest

from joulecast.report.machine import csv_text, json_text


def test_json_round_trip():
    assert json.loads(json_text({"schema": "x/1", "value": 0.1})) == {"schema": "x/1", "value": 0.1}


def test_json_refuses_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"value": float("nan")})


def test_csv_has_the_union_of_the_columns():
    rows = list(csv.DictReader(io.StringIO(csv_text([{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]))))
    assert rows == [{"a": "1", "b": "", "c": ""}, {"a": "2", "b": "", "c": "x, y"}]
