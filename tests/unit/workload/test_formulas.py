"""Formulas on calls whose answers are computed by hand."""

from types import SimpleNamespace

import pytest

from joulecast.workload.calls import FORMULAS, Call, formula
from joulecast.workload.formulas import work_of
from joulecast.workload.products import attention_flop
from joulecast.workload.table import OpKind, Phase
from joulecast.workload.traffic import multi_tensor_launches


def tensor(*shape, dtype="torch.float32", strides=None):
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    size = {"torch.float32": 4, "torch.bfloat16": 2, "torch.int64": 8}[dtype]
    return SimpleNamespace(shape=shape, dtype=dtype, stride=lambda: tuple(strides), element_size=lambda: size)


def call(name, *args, outputs=(), in_backward=False, weight_operand=False, **kwargs):
    return Call(
        name=name,
        args=args,
        kwargs=kwargs,
        outputs=outputs,
        in_backward=in_backward,
        weight_operand=weight_operand,
    )


def test_a_product_counts_two_flop_per_multiply_add():
    (work,) = work_of(call("mm", tensor(3, 5), tensor(5, 7), outputs=(tensor(3, 7),)))

    assert (work.m, work.n, work.k, work.batch) == (3, 7, 5, 1)
    assert work.flop == 2 * 3 * 5 * 7
    assert work.read_bytes == 4 * (15 + 35)
    assert work.written_bytes == 4 * 21


@pytest.mark.parametrize(("weight", "phase"), [(True, Phase.DGRAD), (False, Phase.WGRAD)])
def test_a_product_of_the_backward_pass_is_a_gradient_of_data_or_of_weights(weight, phase):
    made = call(
        "mm", tensor(3, 5), tensor(5, 7), outputs=(tensor(3, 7),), in_backward=True, weight_operand=weight
    )

    assert work_of(made)[0].phase is phase


def test_a_convolution_is_its_implicit_product_and_the_bias_a_kernel_of_its_own():
    x, weight, bias, y = tensor(2, 8, 10, 10), tensor(16, 4, 3, 3), tensor(16), tensor(2, 16, 10, 10)

    convolution, added = work_of(
        call("convolution", x, weight, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 2, outputs=(y,))
    )

    assert (convolution.m, convolution.n, convolution.k, convolution.batch) == (200, 8, 36, 2)
    assert convolution.flop == 2 * 200 * 16 * 36  # every output element takes 36 multiply-adds
    assert convolution.kernel_area == 9
    assert convolution.group_width == 4
    assert added.kind is OpKind.ELEMENTWISE
    assert added.written_bytes == 4 * 3200


def test_the_gradients_of_a_convolution_cost_what_it_costs():
    x, weight, dy = tensor(2, 8, 10, 10), tensor(16, 8, 3, 3), tensor(2, 16, 10, 10)

    works = work_of(
        call(
            "convolution_backward", dy, x, weight, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
            [True, True, True], outputs=(x, weight, tensor(16)), in_backward=True,
        )
    )  # fmt: skip

    assert [w.phase for w in works] == [Phase.DGRAD, Phase.WGRAD, None]
    assert works[0].flop == works[1].flop == 2 * 200 * 16 * 72
    assert works[2].kind is OpKind.REDUCTION


def test_a_transposed_convolution_has_a_row_for_every_input_pixel():
    x, weight, y = tensor(1, 8, 5, 5), tensor(8, 4, 2, 2), tensor(1, 4, 10, 10)

    (work,) = work_of(
        call("convolution", x, weight, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1, outputs=(y,))
    )

    assert work.flop == 2 * 25 * 8 * 4 * 4


def test_attention_flop_of_the_issue():
    assert attention_flop(12, 64, 64, 64, causal=False, products=2) == 12_582_912


def test_causal_attention_skips_what_lies_above_the_diagonal():
    full = attention_flop(1, 100, 100, 8, causal=False, products=2)

    assert attention_flop(1, 100, 100, 8, causal=True, products=2) == full * 101 / 200


def test_flash_backward_computes_five_products_and_mfu_counts_four():
    q = tensor(1, 12, 64, 64, dtype="torch.bfloat16")
    forward = work_of(call("_scaled_dot_product_flash_attention", q, q, q, 0.0, False, outputs=(q,)))[0]
    arguments = (q, q, q, q, q, None, None, None, 64, 64, 0.0, False)
    backward = work_of(
        call("_scaled_dot_product_flash_attention_backward", *arguments, outputs=(q, q, q), in_backward=True)
    )[0]

    assert forward.flop == 12_582_912
    assert backward.flop == 2.5 * forward.flop
    assert backward.model_flop == 2 * forward.model_flop


def test_a_broadcast_operand_is_read_once():
    wide = tensor(100, 50, strides=(0, 1))

    (work,) = work_of(call("add", tensor(100, 50), wide, outputs=(tensor(100, 50),)))

    assert work.read_bytes == 4 * (5000 + 50)


def test_an_embedding_reads_the_rows_it_looks_up_and_its_gradient_writes_the_table():
    table, indices, rows = tensor(1000, 8), tensor(4, dtype="torch.int64"), tensor(4, 8)

    (forward,) = work_of(call("embedding", table, indices, outputs=(rows,)))
    (backward,) = work_of(call("embedding_dense_backward", rows, indices, 1000, -1, False, outputs=(table,)))

    assert forward.read_bytes == 4 * 32 + 8 * 4
    assert backward.written_bytes > 4 * 8000


def test_filling_reads_nothing():
    (work,) = work_of(call("zero_", tensor(100), outputs=(tensor(100),)))

    assert work.read_bytes == 0
    assert work.written_bytes == 400


def test_allocation_launches_nothing():
    assert work_of(call("empty", [3], outputs=(tensor(3),))) == []


def test_a_call_without_a_formula_counts_its_bytes_and_says_so():
    (work,) = work_of(call("my_custom_op", tensor(100), outputs=(tensor(50),)))

    assert work.kind is OpKind.OTHER
    assert work.counted == 0
    assert work.read_bytes + work.written_bytes == 600


def test_a_second_formula_for_a_name_is_refused():
    name = next(iter(FORMULAS))

    with pytest.raises(ValueError, match=name):
        formula(name)(lambda call: [])


@pytest.mark.parametrize(
    ("sizes", "n_lists", "launches"),
    [
        ([10.0] * 110, 1, 1),
        ([10.0] * 111, 1, 2),
        ([10.0] * 60, 5, 2),
        ([65536.0 * 321], 1, 2),
        ([], 2, 0),
    ],
)
def test_multi_tensor_launches_split_by_tensors_and_by_chunks(sizes, n_lists, launches):
    assert multi_tensor_launches(sizes, n_lists) == launches


def test_a_foreach_call_in_place_writes_its_first_list():
    parameters, gradients = [tensor(10), tensor(20)], [tensor(10), tensor(20)]

    (work,) = work_of(call("_foreach_add_", parameters, gradients, outputs=(None,)))

    assert work.read_bytes == 4 * 60
    assert work.written_bytes == 4 * 30


def test_a_fused_optimizer_does_not_write_its_gradients():
    lists = [[tensor(10)] for _ in range(4)]

    (work,) = work_of(call("_fused_adamw_", *lists, [], [tensor(1)], outputs=(None,)))

    assert work.read_bytes == 4 * 40
    assert work.written_bytes == 4 * 30
