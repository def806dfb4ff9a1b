"""Changes the proof's formulas in one place at a time, and prints the changes that compare.py does not see.

    scripts/proof/mutants.py MODEL STEPS

The arguments are as for compare.py. The changes are in steps and parts that the model in Rust has, too.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHANGES = [
    (r" & ", " | "),
    (r" \| ", " & "),
    (r" <= ", " < "),
    (r" < ", " <= "),
    (r"logic\.no\(", "("),
    (r"to=True", "to=False"),
    (r"to=False", "to=True"),
    (r" \+ 1", " + 2"),
    (r" == 0", " == 1"),
    (r"to=0\b", "to=1"),
    (r"(?<=, )0, ", "1, "),
]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = Path(__file__).parent
    model = f"{sys.argv[1]}.py"
    text = (folder / model).read_text()
    join = range(text.index("def join("), text.index("# Each step, with")) if "def join(" in text else ()
    begin = "# The truth." if "# The truth." in text else "# The steps."
    places = range(text.index(begin), len(text))
    found = [(it.span(), new) for old, new in CHANGES for it in re.finditer(old, text)]
    changes = [(span, new) for span, new in sorted(found) if span[0] in places and span[0] not in join]
    missed = 0
    with tempfile.TemporaryDirectory() as copy:
        for file in folder.glob("*.py"):
            shutil.copy(file, copy)
        for (begin, end), new in changes:
            (Path(copy) / model).write_text(text[:begin] + new + text[end:])
            command = [sys.executable, "-B", f"{copy}/compare.py", *sys.argv[1:]]
            if subprocess.run(command, capture_output=True).returncode == 0:
                missed += 1
                line = text.count("\n", 0, begin)
                print(
                    f"line {line + 1}: `{text[begin:end]}` as `{new}`: {text.splitlines()[line]}", flush=True
                )
    print(f"{len(changes) - missed} of {len(changes)} changes are seen")


if __name__ == "__main__":
    main()
