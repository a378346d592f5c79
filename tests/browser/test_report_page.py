"""The report in a real browser: drawn without an error, in both colour schemes, on a phone, on paper.

Screenshots are kept in the folder that JOULECAST_SCREENSHOTS names, else in pytest's own.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("altair", reason="figures need altair")

from joulecast.explore.study import StudyPlan, study  # noqa: E402 (after the checks)
from joulecast.report.page import figures_of, save_page  # noqa: E402
from joulecast.report.reports import report_page  # noqa: E402

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = ("light", "dark")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """Return Debian's Chromium, or the one that playwright downloaded."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    with playwright.sync_playwright() as driver:
        if found is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
        browser = driver.chromium.launch(executable_path=found, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Return a page with every figure, and where it was written."""
    plan = StudyPlan(
        models=("resnet50", "distilbert", "albert"),
        gpu="a100-sxm4-40gb",
        n_gpus=(1, 2, 4),
        precisions=("fp32", "bf16"),
    )
    page = report_page(study(plan).table())
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_page(page, path)
    return page, path


@pytest.fixture
def screenshots(tmp_path):
    folder = Path(os.environ.get("JOULECAST_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def opened(browser, report):
    """Return a maker of pages, drawn, that fails at their end if the console or the network said a word."""
    complaints, pages = [], []

    def open_page(scheme="light", size="desktop"):
        width, height = SIZES[size]
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(f"request: {request.url}")
            ),
        )
        page.goto(report[1].as_uri())
        page.wait_for_selector("html[data-drawn=all]", state="attached", timeout=120_000)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def pixels(png):
    from io import BytesIO

    from PIL import Image

    return np.asarray(Image.open(BytesIO(png)).convert("RGB"), dtype=float)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_figure_is_drawn(opened, report, screenshots, scheme, size):
    page = opened(scheme, size)
    page.screenshot(path=screenshots / f"report-{scheme}-{size}.png", full_page=True)

    n_panels = sum(len(figure.panels) for figure in figures_of(report[0]))
    charts = page.query_selector_all(".chart")
    assert len(charts) == n_panels > 20
    for chart in charts:
        svg = chart.query_selector("svg")
        assert svg is not None
        box = svg.bounding_box()
        assert box["width"] > 150
        assert box["height"] > 50
        assert svg.query_selector_all("path, rect, line, circle")
        # something is on the paper besides the paper
        assert pixels(chart.screenshot()).std() > 3


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_screen(opened, size):
    page = opened(size=size)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect().right))"
    )
    assert right <= SIZES[size][0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_paper_and_ink_follow_the_readers_scheme(opened, scheme):
    page = opened(scheme)
    image = pixels(page.screenshot())
    assert bool(np.median(image) > 200) is (scheme == "light")
    # text inside a figure too
    label = page.evaluate("getComputedStyle(document.querySelector('.chart svg text')).fill")
    channels = [int(part) for part in label.removeprefix("rgb(").removesuffix(")").split(",")]
    assert bool(np.mean(channels) < 128) is (scheme == "light")


def test_a_name_in_the_legend_picks_its_series_out_in_every_panel(opened):
    page = opened()
    figure = page.query_selector("figure:has(.legend)")
    before = [chart.screenshot() for chart in figure.query_selector_all(".chart")]
    button = figure.query_selector(".legend button")

    button.click()
    page.wait_for_timeout(300)

    assert button.get_attribute("aria-pressed") == "true"
    after = [chart.screenshot() for chart in figure.query_selector_all(".chart")]
    assert all(one != other for one, other in zip(before, after, strict=True))
    button.click()
    page.wait_for_timeout(300)
    assert button.get_attribute("aria-pressed") == "false"


def test_pointing_at_a_mark_shows_its_numbers(opened):
    page = opened()
    bar = page.query_selector("#precision .mark-rect path")
    bar.scroll_into_view_if_needed()
    bar.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "times (" in page.inner_text("#vg-tooltip-element")


def test_prints_in_light_colours_though_the_screen_is_dark(opened, screenshots):
    page = opened("dark")
    pdf = page.pdf(path=screenshots / "report.pdf", format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="dark")
    image = pixels(page.screenshot(path=screenshots / "report-print.png"))
    assert np.median(image) > 200
