#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make_venv.sh FOLDER: a virtual environment with the first Python from 3.11 on that this machine
# has and that can make one, unless the folder already is one.  PYTHON=... names an interpreter.
set -eu
venv=$1
incomplete=

if [ -x "$venv/bin/python" ]; then
    exit 0
fi

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "Making $venv with $("$python" --version)"
            exec "$python" -m venv "$venv"
        fi
        incomplete=$python
    fi
done
if [ -n "$incomplete" ]; then
    echo "make: $incomplete cannot make virtual environments." >&2
    echo "make: On Debian and Ubuntu: apt-get install python3-venv" >&2
else
    echo "make: Penstock needs Python 3.11 or newer, and none was found on PATH." >&2
    echo "make: Name one with: make install PYTHON=/path/to/python3" >&2
fi
exit 1
