"""Every colour can be read on its paper, on light and on dark."""

import pytest

from joulecast.report.theme import DARK, LIGHT, PAGE, SERIES, css_variables


def luminance(colour):
    """Return the relative luminance of sRGB, as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def test_the_contrast_of_black_on_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
class TestContrast:
    def test_of_text_is_at_least_4_5(self, theme):
        for role in ("ink", "muted", "alert"):
            assert contrast(theme.colours[role], theme.colours["paper"]) >= 4.5

    def test_of_series_is_at_least_3(self, theme):
        for role in SERIES:
            assert contrast(theme.colours[role], theme.colours["paper"]) >= 3


def test_the_style_sheet_gives_every_role_of_the_page_a_colour_in_both_schemes():
    sheet = css_variables()

    for colour in PAGE.colours.values():
        role = colour.removeprefix("var(").removesuffix(")")
        assert sheet.count(f"{role}:") == 2


def test_dark_colours_are_for_screens_alone_so_that_print_is_light():
    assert "@media screen and (prefers-color-scheme:dark)" in css_variables()
