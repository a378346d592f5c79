import io

from joulecast.report.predictions import prediction_page, predictions_table
from joulecast.report.tables import Sheet, draw
from joulecast.results import MemoryVerdict


def drawn(page) -> str:
    out = io.StringIO()
    draw(page, out)
    return out.getvalue()


def test_page_says_all_that_was_asked_and_found(make_prediction):
    prediction = make_prediction(
        flags=("beyond the calibration",), guesses=("idle_power_w",), notes=("traced as eager",)
    )
    text = drawn(prediction_page(prediction))
    for part in (
        "2 x NVIDIA A100-SXM4-40GB",
        "batch 32 per GPU, 64 in all (ddp), sequence 128, adamw, sdpa attention, contiguous, limit 400 W",
        "100 ms",
        "90.0 - 110",
        "calibrated",
        "640",
        "300 W",
        "bound by compute: compute 70.0 %, memory 30.0 % of the step",
        "MFU divides by 312 TFLOP/s dense (bf16_tensor)",
        "memory: fits (process at most 10.2 GiB of 37.3 GiB)",
        "! beyond the calibration",
        "idle_power_w",
        "traced as eager",
        "gemm",
    ):
        assert part in text, part


def test_page_of_a_whole_run(make_prediction):
    text = drawn(prediction_page(make_prediction(whole_run=make_prediction().forecast(n_samples=64 * 36000))))
    assert "1.00 h" in text
    assert "0.6 kWh" in text


def test_page_lists_options(make_prediction):
    prediction = make_prediction(
        checkpointing=True,
        clip=True,
        accumulate=4,
        image_size=224,
        locked_sm_clock_hz=9e8,
        mfu=None,
        n_gpus=1,
    )
    text = drawn(prediction_page(prediction))
    for part in ("checkpointing", "clipping", "4 micro-batches", "image 224", "clock locked at 900 MHz"):
        assert part in text, part
    assert "MFU" not in text


def test_table_has_a_row_each_and_shares_what_is_equal(make_prediction):
    predictions = [
        make_prediction(precision=precision, memory_verdict=verdict, flags=flags)
        for precision, verdict, flags in (
            ("bf16", MemoryVerdict.FITS, ()),
            ("fp32", MemoryVerdict.DOES_NOT_FIT, ("too large",)),
        )
    ]
    page = predictions_table(predictions)
    (sheet,) = [part for part in page if isinstance(part, Sheet)]
    assert len(sheet.rows) == 2
    text = drawn(page)
    assert "batch/GPU 32, sequence 128" in text
    assert "does not fit" in text
    assert "! hf/bert-base-uncased#sequence-classification: too large" in text


def test_table_of_whole_runs(make_prediction):
    run = make_prediction().forecast(n_samples=64 * 36000)
    text = drawn(
        predictions_table([make_prediction(whole_run=run), make_prediction(gpu="t4", whole_run=run)])
    )
    assert "1.00 h" in text


def test_nothing_is_cut_off_in_a_pipe(make_prediction):
    lines = drawn(predictions_table([make_prediction(), make_prediction(gpu="t4")])).splitlines()
    assert max(len(line) for line in lines) > 100
    assert not any("…" in line for line in lines)
