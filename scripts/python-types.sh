#!/usr/bin/env bash
# Checks the types of the Python package, of its examples and of the programs in python/tests/typed with
# pyright and mypy, and the style with ruff, in an environment of its own. pyproject.toml configures them.
# Needs Python 3.11 and a package index.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${MILLPOND_PYTHON:-python3}" -m venv "$work/env"
bin=$work/env/bin
"$bin/pip" install --quiet mypy numpy 'pyright[nodejs]' ruff
"$bin/ruff" check --no-cache python
"$bin/mypy" --cache-dir /dev/null
"$bin/pyright" --pythonpath "$bin/python"
