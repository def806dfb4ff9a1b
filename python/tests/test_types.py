"""Types: mypy accepts the package, the examples and the programs in `typed`, and the stubs fit the module.

pyproject.toml configures mypy and ruff. `typed/wrong.py` holds mistakes that mypy must find.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = sorted((Path(__file__).parent / "typed").glob("*.py"))


def run(module, *arguments):
    """Run a Python module in the checkout. Skip the test if the module is not installed and not required."""
    name = module.split(".")[0]
    if importlib.util.find_spec(name) is None:
        assert "MILLPOND_REQUIRE_PYTHON" not in os.environ, f"{name} is not installed: pip install {name}"
        pytest.skip(f"{name} is not installed")
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_accepts_the_package_the_examples_and_the_programs():
    run("mypy", "--cache-dir", os.devnull)


def test_the_stubs_fit_the_module():
    """mypy's stubtest compares names and signatures. The file of exceptions gives a reason for each."""
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("dask[distributed] is not installed, and millpond.dask cannot be imported")
    exceptions = str(ROOT / "python/tests/typed/stubtest.allow")
    run("mypy.stubtest", "millpond", "--mypy-config-file", "pyproject.toml", "--allowlist", exceptions)


def test_ruff_accepts_the_sources():
    run("ruff", "check", "--no-cache", "python")


@pytest.mark.parametrize("program", TYPED, ids=lambda path: path.stem)
def test_a_typed_program_runs(program):
    environment = os.environ | {"MILLPOND_DEVICE": "sim:8GiB"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_each_mistake_of_the_wrong_program_is_expected():
    """mypy refuses an unused exception, so each of these lines holds a mistake that it finds."""
    [wrong] = [path for path in TYPED if path.stem == "wrong"]
    mistakes = [line for line in wrong.read_text().splitlines() if line.startswith("    ")]
    assert len(mistakes) >= 10
    assert all("# type: ignore[" in line for line in mistakes)
