import tomllib

import pytest

from joulecast.hardware import Fact, FactKind
from joulecast.hardware.toml_text import document, human


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("boost_clock_hz", 1.41e9, "1410 MHz"),
        ("memory_bytes", 40 * 2**30, "40 GiB"),
        ("l2_bytes", 40 * 2**20, "40 MiB"),
        ("per_sm.max_shared_bytes", 164 * 2**10, "164 KiB"),
        ("per_sm.max_shared_bytes", 12, "12 bytes"),
        ("pcie.bytes_per_s", 31.5e9, "31.5 GB/s"),
        ("published_flop_per_s.fp32_vector", 19.5e12, "19.5 TFLOP/s"),
        ("power_limit_w", 400, "400 W"),
        ("memory_data_rate_bit_per_s", 2.43e9, "2.43 Gbit/s per pin"),
        ("n_sms", 108, ""),
        ("flop_per_clock_per_sm.fp32_vector", 128, ""),
    ],
)
def test_human_values(key: str, value: float, text: str) -> None:
    assert human(key, value) == text


def test_document_is_toml_with_any_text() -> None:
    fact = Fact(value=0.1, source='a "quoted" \\ source', kind=FactKind.GUESS)
    labels = {"notes": 'tab\t, newline\n, "quote"', "link.kind": "pcie"}
    content = tomllib.loads(document(labels, {"x": fact, "link.bytes_per_s": fact}, "two\nlines"))
    assert content["notes"] == labels["notes"]
    assert content["link"]["kind"] == "pcie"
    assert content["x"] == {"value": 0.1, "source": fact.source, "kind": "guess"}
