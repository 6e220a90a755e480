"""What is shown of what workers print."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.spark.launch.relay import NoiseFilter, OutputRelay

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "Traceback (most recent call last):\n"
DAEMON = (
    '  File "/venv/site-packages/pyspark/daemon.py", line 264, in manager\n    code = worker()\n'
)
ZIPPED = '  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 95, in worker\n'
USERS = '  File "/home/me/pipeline.py", line 7, in parse\n    return parse(line)\n'
HUNG_UP = "BrokenPipeError: [Errno 32] Broken pipe\n"
PIECES = [
    HEADER,
    DAEMON,
    ZIPPED,
    USERS,
    HUNG_UP,
    "ValueError: no\n",
    "hello\n",
    "dots",
    " ",
    "\r",
    "\n",
]


def shown(*chunks: str) -> str:
    noise = NoiseFilter()
    return "".join([*map(noise.feed, chunks), noise.finish()])


def test_a_worker_that_was_hung_up_on_is_not_shown() -> None:
    assert shown("a\n", HEADER + DAEMON + ZIPPED + HUNG_UP, "b\n") == "a\nb\n"


def test_nor_are_two_that_complain_at_once() -> None:
    assert shown(HEADER + HEADER + DAEMON + DAEMON + HUNG_UP + DAEMON + ZIPPED + HUNG_UP) == ""


def test_other_tracebacks_are_shown() -> None:
    for other in (HEADER + USERS + HUNG_UP, HEADER + DAEMON + "ValueError: no\n", HEADER + HUNG_UP):
        assert shown(other) == other


def test_an_unfinished_line_is_shown_at_once() -> None:
    noise = NoiseFilter()
    assert noise.feed("working") == "working"
    assert noise.feed(".") == "."
    assert noise.feed(HEADER) == HEADER  # not at the beginning of a line


def test_an_unfinished_traceback_is_shown_in_the_end() -> None:
    noise = NoiseFilter()
    assert noise.feed(HEADER + DAEMON + USERS + "    co") == ""
    assert noise.finish() == HEADER + DAEMON + USERS + "    co"


@pytest.mark.parametrize("end", ["", HEADER, HEADER[:5], DAEMON, DAEMON + "    co"])
def test_unless_it_is_of_a_worker_that_was_killed_with_the_jvm(end: str) -> None:
    assert shown("a\n", HEADER + end) == "a\n"


def test_what_was_printed_in_the_midst_of_it_is_shown() -> None:
    assert shown(HEADER + DAEMON, "dots") == "dots"


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), cuts=st.lists(st.integers(0, 400)))
def test_it_does_not_matter_how_the_output_is_cut_into_chunks(
    pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert shown(*chunks) == shown(text)


def test_output_goes_to_the_log_and_then_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    relay = OutputRelay(os.fdopen(reader, "rb"), tmp_path / "log")
    os.write(writer, b"before\n")
    while (tmp_path / "log").read_text() != "before\n":
        pass
    relay.show = True
    os.write(writer, "nach\u00f6her\n".encode() + (HEADER + DAEMON + HUNG_UP).encode())
    os.close(writer)
    relay.join()
    assert capsys.readouterr().err == "nach\u00f6her\n"
    assert (tmp_path / "log").read_text() == "before\n"
