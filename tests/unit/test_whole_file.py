"""A file is written whole or not at all."""

import os

import pytest

from joulecast.whole_file import whole_file


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    target = tmp_path / "set.toml"
    target.write_text("old")
    with whole_file(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["set.toml"]


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    target = tmp_path / "set.toml"
    target.write_text("old")

    def interrupted():
        with whole_file(target) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["set.toml"]


def test_others_may_read_it_as_the_user_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "a") as partial:
            partial.write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
