"""A page is one file that loads nothing, holds what it was given, and is taken for no markup."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

pytest.importorskip("altair")

from joulecast.errors import RunsError, UsageError
from joulecast.explore.sweep import sweep
from joulecast.explore.table import load_sweep
from joulecast.report.charts import Figure, Panel, bars
from joulecast.report.page import Page, Section, figures_of, page_html, save_page, sheet_html
from joulecast.report.reports import report_page
from joulecast.report.tables import Sheet, markdown

GPU = "a100-sxm4-40gb"
NASTY = "</script><script>alert('1 & 2')</script>"


def one_figure(text="plain"):
    records = [{"label": text, "x": 1.0, "series": text, "shown": text}]
    chart = bars(records, x_title="x", labels=[text], series=[text])
    return Figure(name="f", title=text, caption=text, panels=(Panel(title=text, chart=chart),))


def one_page(text="plain"):
    sheet = Sheet(columns=(text, ">n"), rows=((text, "1"),), title=text)
    section = Section(title=text, body=(text, sheet, one_figure(text)))
    return Page(title=text, subtitle=text, sections=(section,), footer=text)


class Elements(HTMLParser):
    """Collects tags, and the text of script elements by id."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self._id = [], {}, None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._id = dict(attrs).get("id", f"script-{len(self.scripts)}")
            self.scripts[self._id] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._id = None

    def handle_data(self, data):
        if self._id is not None:
            self.scripts[self._id] += data


def parsed(html):
    elements = Elements()
    elements.feed(html)
    return elements


class TestPage:
    def test_asks_for_nothing(self):
        elements = parsed(page_html(one_page()))
        links = [
            value
            for _, attributes in elements.tags
            for name, value in attributes.items()
            if name in ("src", "href") and not value.startswith(("#", "data:"))
        ]
        assert links == []
        (policy,) = (
            a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy

    def test_keeps_text_from_being_markup(self):
        elements = parsed(page_html(one_page(NASTY)))

        assert len(elements.scripts) == 4  # the library, the specs, the configuration, the page's own
        spec = json.loads(elements.scripts["specs"])["f-0"]
        assert NASTY in json.dumps(spec, ensure_ascii=False)

    def test_colours_its_charts_by_roles(self):
        config = json.loads(parsed(page_html(one_page())).scripts["config"])
        assert config["range"]["category"][0] == "var(--series-1)"
        assert not re.search(r"#[0-9a-f]{6}", json.dumps(config))

    def test_says_for_a_screen_reader_what_a_chart_is(self):
        charts = [a for _, a in parsed(page_html(one_page("Energy"))).tags if a.get("class") == "chart"]
        assert [a["aria-label"] for a in charts] == ["Energy Energy"]

    def test_is_replaced_as_a_whole(self, tmp_path):
        target = tmp_path / "r.html"
        target.write_text("old")
        save_page(one_page(), target)
        assert target.read_text().startswith("<!doctype html>")
        assert list(tmp_path.iterdir()) == [target]


def test_numbers_of_a_table_stand_right():
    html = sheet_html(Sheet(columns=("a", ">b"), rows=(("x", "1"),)))
    assert '<td class="number">1</td>' in html
    assert "<td>x</td>" in html


def test_a_table_in_markdown_escapes_its_bars():
    sheet = Sheet(columns=("a", ">b"), rows=(("x|y", "1"),), title="t")
    assert markdown(sheet) == "t\n\n| a | b |\n| --- | --: |\n| x\\|y | 1 |"


@pytest.fixture(scope="module")
def result():
    return sweep(
        {
            "model": ["distilbert", "albert"],
            "gpu": GPU,
            "precision": ["fp32", "bf16"],
            "batch_per_gpu": [16, 32, 4096],
            "n_gpus": [1, 2],
        }
    )


@pytest.fixture(scope="module")
def report(result):
    return report_page(result)


class TestReport:
    def test_has_a_section_for_what_differs_alone(self, report):
        titles = [section.title for section in report.sections]
        assert {"Precision", "Operators", "Memory", "Parameter sharing", "Batch", "Scaling"} <= set(titles)
        assert "Power limit" not in titles

    def test_recommends_nothing_that_may_not_fit(self, report):
        (section,) = (s for s in report.sections if s.title == "Best choices")
        (sheet,) = (part for part in section.body if isinstance(part, Sheet))
        batch = sheet.columns.index(">batch/GPU")
        assert {row[batch] for row in sheet.rows} <= {"16", "32"}
        assert len(sheet.rows) == 4  # two models, fastest and least energy

    def test_of_a_kept_table_is_that_of_the_table(self, result, report, tmp_path):
        result.save(tmp_path / "r.csv")
        pages = [report, report_page(load_sweep(tmp_path / "r.csv"))]
        assert [f.caption for f in figures_of(pages[0])] == [f.caption for f in figures_of(pages[1])]

    def test_of_two_cards_has_the_memory_of_each(self):
        two = sweep({"model": "distilbert", "gpu": [GPU, "t4"], "precision": "fp16"})
        names = [figure.name for figure in figures_of(report_page(two))]
        assert {f"memory-{GPU}", "memory-t4"} <= set(names)
        assert len(set(names)) == len(names)

    def test_of_a_long_table_draws_a_part_that_keeps_the_best(self, result):
        limits = np.linspace(100.0, 400.0, 301)
        table = sweep(
            {"model": "distilbert", "gpu": GPU, "precision": "bf16", "power_limit_w": limits.tolist()}
        )
        (figure,) = (f for f in figures_of(report_page(table)) if "energy" in f.name)
        best = limits[np.argmin(table["energy_per_sample_j"])]
        document = json.dumps(figure.panels[0].chart.to_dict())
        assert document.count('"shown"') < 200
        assert f'"x": {best}' in document

    def test_says_where_parameters_differ(self, result):
        changed = result.where(result["precision"] == "fp32")
        columns = {**changed.columns, "step_time_s": changed["step_time_s"] * 2}
        page = report_page(type(result)(columns=columns))
        (remarks,) = (s.body for s in page.sections if s.title == "Remarks")
        assert any("with other parameters" in line for line in remarks)

    def test_of_nothing_says_why(self):
        nothing = sweep({"model": "bert-base", "gpu": GPU, "seq_len": 100_000})
        with pytest.raises(UsageError, match="nothing to report: 1 x "):
            report_page(nothing)

    def test_of_another_file_is_refused(self, tmp_path):
        (tmp_path / "r.csv").write_text("a,b\n1,2\n")
        with pytest.raises(RunsError, match="is not the table of a sweep"):
            load_sweep(tmp_path / "r.csv")
