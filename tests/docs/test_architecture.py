"""The papers for who changes the code name files and classes that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jetlet

ROOT = Path(__file__).parents[2]
PAPERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")]
SOURCE = Path(jetlet.__file__).parent
CODE = re.compile(r"`([^`\n]+)`")
A_PATH = re.compile(r"[a-z_]+(/[a-z_]+)*(\.py)?/?")
A_CLASS = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)+")


def spoken_of(paper, kind):
    """What is in back-quotes, outside of blocks, and is as a whole of this kind."""
    prose = re.sub(
        r"^```.*?^```$", "", paper.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return {name for name in CODE.findall(prose) if kind.fullmatch(name)}


def classes():
    source = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    return {name for text in source for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)}


@pytest.mark.parametrize("paper", [p for p in PAPERS if p.exists()], ids=lambda p: p.name)
def test_files_are_there(paper):
    paths = {name for name in spoken_of(paper, A_PATH) if "/" in name}

    missing = {p for p in paths if not (SOURCE / p).exists() and not (ROOT / p).exists()}

    assert not missing


def test_the_architecture_names_files():
    assert len(spoken_of(PAPERS[0], A_PATH)) > 40


@pytest.mark.parametrize("paper", [p for p in PAPERS if p.exists()], ids=lambda p: p.name)
def test_classes_are_there(paper):
    assert spoken_of(paper, A_CLASS) <= classes() | {"DataFrame"}
