#!/bin/sh
# Creates a virtual environment with pip in the folder named by $1. Nothing outside that folder changes.
# Takes PYTHON, or else the first of python3, python3.13, python3.12, python3.11 that is new enough.
# Debian and Ubuntu ship Python without ensurepip; without python3-venv this takes the pip of the system,
# or unpacks Debian's own pip wheel, without installing it.
set -eu

venv=$1

fail() {
    echo "$1" >&2
    exit 1
}

new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

# Unpacks Debian's pip wheel below the environment and installs pip from it.
pip_from_debian() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    mkdir "$venv/debian"
    (cd "$venv/debian" && apt-get -qq download python3-pip-whl && dpkg -x python3-pip-whl_*.deb .) || return 1
    for wheel in "$venv"/debian/usr/share/python-wheels/pip-*.whl; do
        "$venv/bin/python" "$wheel/pip" install --quiet --no-index "$wheel" || return 1
    done
    rm -rf "$venv/debian"
}

python=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "joulecast needs Python 3.11 or newer: install it, or name it with PYTHON=/path/to/python3"

if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    exec "$python" -m venv "$venv"
fi

trap 'rm -rf "$venv"' EXIT
"$python" -m venv --without-pip "$venv" || fail "cannot create $venv: run 'apt-get install python3-venv', try again"
if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip --python "$venv/bin/python" install --quiet pip
else
    pip_from_debian || fail "no pip at hand: run 'apt-get install python3-venv' and try again"
fi
trap - EXIT
