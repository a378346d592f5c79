import pytest

from joulecast.errors import UnknownNameError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.changes import PROPERTIES, Change, changed_gpu, parse_changes

A100 = load_gpu("a100-sxm4-40gb")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("bandwidth=2x", Change(name="bandwidth", factor=2.0)),
        ("peak_bf16=+20%", Change(name="peak_bf16", factor=1.2)),
        ("l2 = -50%", Change(name="l2", factor=0.5)),
        ("l2=8e7", Change(name="l2", value=8e7)),
    ],
)
def test_changes_are_factors_percentages_or_values(text, change):
    assert parse_changes(text) == (change,)
    assert parse_changes(str(change)) == (change,)


@pytest.mark.parametrize("name", [name for name, known in PROPERTIES.items() if known.read(A100) > 0])
def test_every_property_becomes_what_was_asked(name):
    known = PROPERTIES[name]
    assert known.read(changed_gpu(A100, (Change(name=name, factor=1.5),))) == pytest.approx(
        1.5 * known.read(A100)
    )
    value = 0.8 * known.read(A100)
    expected = round(value) if name == "sms" else value
    assert known.read(changed_gpu(A100, (Change(name=name, value=value),))) == pytest.approx(expected)


def test_a_changed_card_says_so_and_knows_its_board():
    changed = changed_gpu(A100, parse_changes("bandwidth=2x, sms=120"))
    assert changed.slug == "a100-sxm4-40gb[bandwidth=2x,sms=120]"
    assert changed.board == A100.board == "a100-sxm4-40gb"
    assert changed.as_built("n_sms", 0.0) == 108
    assert changed.n_sms == 120
    assert changed_gpu(A100, ()) is A100


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("bandwidht=2x", UnknownNameError, "did you mean bandwidth"),
        ("bandwidth", UsageError, "changes nothing"),
        ("bandwidth=fast", UsageError, "neither a factor"),
        ("bandwidth=-100%", UsageError, "leaves nothing"),
        ("bandwidth=infx", UsageError, "leaves nothing"),
    ],
)
def test_what_cannot_be_read_says_why(text, error, message):
    with pytest.raises(error, match=message):
        parse_changes(text)


def test_what_a_card_has_not_cannot_be_changed():
    with pytest.raises(UsageError, match="v100-sxm2-16gb has no dense peak of the BF16"):
        changed_gpu(load_gpu("v100-sxm2-16gb"), parse_changes("peak_bf16=2x"))
    with pytest.raises(UsageError, match="cannot be with"):
        changed_gpu(A100, parse_changes("power_limit=1"))
