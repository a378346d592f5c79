import sys

import click
import pytest

from joulecast.cli import main, show
from joulecast.errors import MissingExtraError, UsageError


@pytest.fixture
def failing(monkeypatch):
    """Return a caller of the command line whose command raises what is given."""

    def call(error: BaseException) -> int:
        def raises(*_, **__):
            raise error

        monkeypatch.setattr(main.cli, "main", raises)
        return main.run([])

    return call


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no\n such card"), 2, "joulecast: error: no such card\n"),
        (MissingExtraError("install torch"), 1, "joulecast: error: install torch\n"),
        (click.UsageError("no such option"), 2, "joulecast: error: no such option\n"),
        (KeyboardInterrupt(), 130, "joulecast: error: interrupted\n"),
    ],
)
def test_what_is_raised_on_purpose_is_one_line(failing, capsys, error, code, line):
    assert failing(error) == code
    assert capsys.readouterr().err == line


def test_a_bug_keeps_its_traceback(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


def test_main_exits(monkeypatch):
    monkeypatch.setattr(main, "run", lambda _: 7)
    with pytest.raises(SystemExit) as exit_:
        main.main(["gpus"])
    assert exit_.value.code == 7


def test_progress_shows_on_a_terminal_only(monkeypatch, capsys):
    steps = [1, 2, 3]
    assert show.with_progress(steps, "predicting") is steps
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(show.with_progress(steps, "predicting")) == steps
    assert capsys.readouterr().out == ""
