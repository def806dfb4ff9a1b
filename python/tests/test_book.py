"""The programs of the book run unchanged on the simulated device, with one process for each page."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

BOOK = pathlib.Path(__file__).parents[2] / "docs/book/src"
README = pathlib.Path(__file__).parents[2] / "README.md"


def programs(text):
    """Return the ```python blocks of a page. A ```python,norun block needs a framework or a GPU."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


PAGES = [page for page in [README, *sorted(BOOK.rglob("*.md"))] if programs(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page, tmp_path):
    program, text = tmp_path / "page.py", "\n".join(programs(page.read_text()))
    if "import rmm\n" in text:
        pytest.importorskip("rmm")
    program.write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_STACK")}
    command = [sys.executable, program]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stderr


def test_the_pages_are_found():
    assert {"README", "python", "tutorial"} <= {page.stem for page in PAGES}
    assert programs("```python\na\n```\n```python,norun\nb\n```\n") == ["a\n"]
