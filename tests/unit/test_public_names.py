import subprocess
import sys

import pytest

import joulecast

HEAVY = ("torch", "torchvision", "transformers", "timm", "pandas", "pyarrow", "scipy")


@pytest.mark.parametrize("name", joulecast.__all__)
def test_every_public_name_is_there(name):
    assert getattr(joulecast, name) is not None


def test_public_names_are_sorted_and_listed():
    assert joulecast.__all__ == sorted(joulecast.__all__)
    assert dir(joulecast) == joulecast.__all__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'guess'"):
        _ = joulecast.guess


def loaded_by(code: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter has loaded after some code."""
    report = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import joulecast") == set()


def test_the_core_works_with_torch_blocked():
    code = (
        "import sys\n"
        "for name in ('torch', 'torchvision', 'transformers', 'timm', 'pandas', 'pyarrow', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "import joulecast\n"
        "for name in joulecast.__all__:\n"
        "    getattr(joulecast, name)\n"
        "from joulecast.cli import gpus, main, models, predict, trace, validate\n"
        "for name in list(sys.modules):\n"
        "    if sys.modules[name] is None:\n"
        "        del sys.modules[name]\n"
    )
    assert loaded_by(code) == set()
