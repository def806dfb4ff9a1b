"""The headers of the programs, and the lines that their comments `# holds` and `# fails` mark.

    python headers.py --check    fails if a header names another line than the comments
    python headers.py --write    puts the numbers of the lines into the headers

A header is a comment `# name: value` at the top of a program.
"""

import ast
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = re.compile(r"#\s+((?:holds|fails)(?:\s+(?:holds|fails))*)$")
# The header that lists the lines of each mark.
HEADER_OF = {"holds": "line", "fails": "fails"}


def read(path):
    """Returns the headers of a program."""
    found = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        name, _, value = line.lstrip("# ").partition(":")
        found[name.strip()] = value.strip()
    return found


def programs(folder):
    """Returns the programs of a folder, without the modules that they share."""
    return [path for path in sorted((HERE / folder).glob("*.py")) if read(path)]


def marked(path):
    """Returns the marked lines as `folder/file.py:line in function`, for each header."""
    text = path.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    lines = {name: [] for name in HEADER_OF.values()}
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.search(line)
        if mark:
            around = [node for node in functions if node.lineno <= number <= node.end_lineno]
            name = max(around, key=lambda node: node.lineno).name
            for word in mark[1].split():
                lines[HEADER_OF[word]].append(f"{path.parent.name}/{path.name}:{number} in {name}")
    return {name: ", ".join(places) for name, places in lines.items()}


def problems(path):
    """Returns one sentence for each header that names other lines than the comments."""
    headers = read(path)
    return [
        f"{path.name}: `{name}` is `{headers.get(name)}`, but the comments mark `{places}`"
        for name, places in marked(path).items()
        if headers.get(name) != places
    ]


def write(path):
    text = path.read_text()
    for name, places in marked(path).items():
        text = re.sub(rf"^# {name}:.*$", f"# {name}: {places}", text, count=1, flags=re.MULTILINE)
    path.write_text(text)


if __name__ == "__main__":
    if "--write" in sys.argv:
        for path in programs("fail"):
            write(path)
    wrong = [problem for path in programs("fail") for problem in problems(path)]
    sys.exit("\n".join(wrong) or 0)
