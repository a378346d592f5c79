"""Documentation that is run, or compared with what the code does."""

import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import joulecast
from joulecast.cli.main import run
from joulecast.explore.request import request_of
from joulecast.explore.space import space_of
from joulecast.results import MeasuredQuantity

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readme_folder(tmp_path_factory):
    """Return where the README's commands run: what one writes, a later one reads."""
    return tmp_path_factory.mktemp("readme")


#: Pages whose commands and code are run.
PAGES = ("README.md", "docs/recommend.md", "docs/whole-run.md", "docs/sweep.md")


@pytest.mark.parametrize(
    "command", [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
)
def test_commands_of_the_pages_run(command, capsys, readme_folder, monkeypatch):
    monkeypatch.chdir(readme_folder)
    program, *arguments = shlex.split(command)
    assert program == "joulecast"
    assert run(arguments) == 0, capsys.readouterr().err


def test_python_of_the_readme_runs(capsys):
    for code in blocks("README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})
    assert "fits" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES[1:])
def test_python_of_the_pages_runs(page, capsys):
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), {})
    assert "Quantity" in capsys.readouterr().out


def test_the_request_in_the_docs_is_one():
    (block,) = blocks("docs/recommend.md", "toml")
    document = tomllib.loads(block)
    document["candidates"]["model"] = "bert-base"
    assert request_of(document).limits.given() == ("run_time_s",)


def test_every_key_of_a_prediction_is_documented(make_prediction):
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_0-9]+)`", text))
    run_keys = make_prediction().forecast(n_samples=1)
    prediction = make_prediction(whole_run=run_keys).to_dict()
    keys = set(prediction) | set(prediction["op_groups"][0]) | set(prediction["whole_run"])
    assert keys <= documented


def test_every_key_of_a_measurement_is_documented():
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_0-9]+)`", text)) | set(re.findall(r'"([a-z_]+)"', text))
    keys = {f.name for record in (joulecast.Measurement, MeasuredQuantity) for f in fields(record)}
    assert keys <= documented


def test_the_two_commands_are_in_the_readme_and_the_makefile():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert command in targets


def test_changelog_is_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(.*?)\]", text, flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == joulecast.__version__


def test_decisions_are_listed():
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\((.*?\.md)\)", (folder / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} <= listed


def test_the_space_in_the_docs_is_one():
    (block,) = blocks("docs/sweep.md", "toml")
    assert len(space_of(tomllib.loads(block))) == 2 * 2 * 4 * 2 * 8
