"""A cut holds everything but what it shows, in a full product and in a union of curves alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.report.slices import distinct, groups, slice_along, take


def columns(**given_columns):
    n = len(next(iter(given_columns.values())))
    return {
        name: np.array(given_columns.get(name, [default] * n))
        for name, default in (("model", "m"), ("gpu", "g"), ("precision", "fp32"), ("batch_per_gpu", 8.0))
    } | {name: np.array(values) for name, values in given_columns.items()}


def test_a_product_is_cut_at_the_middle_of_what_is_held():
    product = columns(
        precision=["fp32", "fp32", "fp32", "bf16", "bf16", "bf16"],
        batch_per_gpu=[1.0, 2.0, 4.0, 1.0, 2.0, 4.0],
    )
    assert slice_along(product, ("precision",)).tolist() == [1, 4]
    assert slice_along(product, ("precision", "batch_per_gpu")).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_union_of_curves_is_cut_where_they_cross():
    union = columns(
        batch_per_gpu=[1.0, 2.0, 4.0, 4.0, 4.0], power_limit_w=[400.0, 400.0, 400.0, 300.0, 200.0]
    )
    assert slice_along(union, ("batch_per_gpu",)).tolist() == [0, 1, 2]
    assert slice_along(union, ("power_limit_w",)).tolist() == [2, 3, 4]


def test_every_model_is_held_at_its_own_usual_value():
    table = columns(model=["a", "a", "a", "b", "b"], batch_per_gpu=[1.0, 2.0, 2.0, 8.0, 8.0])
    assert slice_along(table, ()).tolist() == [1, 2, 3, 4]


def test_values_that_never_meet_still_leave_rows():
    apart = columns(
        batch_per_gpu=[1.0, 1.0, 2.0, 2.0, 4.0],
        n_gpus=[1, 2, 4, 4, 4],
        power_limit_w=[1.0, 2.0, 3.0, 4.0, 5.0],
    )
    assert len(slice_along(apart, ())) == 1


def test_nan_is_one_value():
    table = columns(locked_sm_clock_hz=[np.nan, np.nan, 1e9], batch_per_gpu=[1.0, 2.0, 1.0])
    assert slice_along(table, ("batch_per_gpu",)).tolist() == [0, 1]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), min_size=1, max_size=30))
def test_groups_hold_every_row_once_in_order_of_appearance(pairs):
    table = {"model": np.array([m for m, _ in pairs]), "gpu": np.array([g for _, g in pairs])}
    found = groups(table, ("model", "gpu"))

    assert sorted(np.concatenate(found).tolist()) == list(range(len(pairs)))
    assert [pairs[rows[0]] for rows in found] == list(dict.fromkeys(pairs))
    for rows in found:
        assert len({pairs[i] for i in rows}) == 1


def test_distinct_values_keep_their_order():
    assert distinct({"precision": np.array(["tf32", "bf16", "tf32"])}, "precision") == ["tf32", "bf16"]


def test_records_are_plain_values():
    (record,) = take({"x": np.array([1.5, 2.5]), "y": np.array(["a", "b"])}, np.array([1]), ["x", "y", "z"])
    assert record == {"x": 2.5, "y": "b"}
    assert type(record["x"]) is float


def test_no_rows_make_no_groups():
    with pytest.raises(KeyError):
        groups({}, ("model",), np.array([0]))
    assert groups({"model": np.array([])}, ("model",)) == []
