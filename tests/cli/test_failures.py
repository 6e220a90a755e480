from __future__ import annotations

import json
from pathlib import Path

from jetlet.cli.failures import describe, format_cause, is_user_file, place_of
from jetlet.core.dag import DAG
from jetlet.errors import JobFailedError


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def parse():
    json.loads("{")


def test_frames_of_libraries_are_left_out():
    error = JobFailedError("outer")
    error.__cause__ = raised(parse)
    text = format_cause(error)
    assert "in parse" in text and __file__ in text
    assert "json/decoder.py" not in text
    assert text.splitlines()[-1].startswith("json.decoder.JSONDecodeError: Expecting property")
    assert "json/decoder.py" in format_cause(error, whole=True)


def test_frames_of_jetlet_are_left_out():
    def build():
        DAG().validate()

    error = raised(build)
    assert "in build" in format_cause(error)
    assert "core/dag.py" not in format_cause(error)
    assert "core/dag.py" in format_cause(error, whole=True)


def test_errors_behind_errors_are_shown():
    def convert():
        try:
            parse()
        except ValueError as error:
            raise KeyError("second") from error

    text = format_cause(raised(convert))
    assert "direct cause" in text
    assert "JSONDecodeError" in text and "KeyError: 'second'" in text
    assert "json/decoder.py" not in text


def test_without_a_frame_of_the_user_there_is_nothing_to_show():
    try:
        eval("1 / 0", {})
    except ZeroDivisionError as error:
        bare = error.with_traceback(None)
    assert format_cause(bare) == ""


def test_a_home_is_the_users_wherever_it_is():
    file = "/opt/venv/lib/python3.12/site-packages/company/jobs.py"
    assert not is_user_file(file)
    assert is_user_file(file, Path("/opt/venv/lib/python3.12/site-packages/company"))
    assert not is_user_file("<fused 1234>")


def test_place_is_the_last_line_of_the_user():
    assert place_of(raised(parse)).endswith(
        f"test_failures.py, line {parse.__code__.co_firstlineno + 1}"
    )
    assert place_of(ValueError("never raised")) == ""


def test_an_error_without_text_is_described_by_its_type():
    assert describe(ValueError("bad")) == "ValueError: bad"
    assert describe(NotImplementedError()) == "NotImplementedError"
