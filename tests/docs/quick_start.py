"""Run the README's first program, embedded, with the Jetlet that is installed: `make dist`.

python quick_start.py README.md BOOKS
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import jetlet

readme, books = (Path(each).resolve() for each in sys.argv[1:])
assert Path(jetlet.__file__).is_relative_to(sys.prefix), f"that is not the wheel: {jetlet.__file__}"

code = re.search(r"^```python\n(.*?)^```$", readme.read_text(), re.DOTALL | re.MULTILINE)[1]
with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    shutil.copytree(books, "books")
    program = {"__name__": "word_count"}
    exec(code, program)
    program["p"].run(on="embedded")
    counted = sum(len(part.read_text().splitlines()) for part in Path("out/counts").glob("part-*"))
    os.chdir(os.sep)
assert counted > 1000, counted
print(f"jetlet {jetlet.__version__} counts {counted:,} words from the wheel")
