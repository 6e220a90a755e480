"""Arguments of the function that makes a pipeline, from the command line."""

from __future__ import annotations

import enum
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest

from jetlet.cli.arguments import bind
from jetlet.cli.failures import Refused


class Colour(enum.Enum):
    RED = "#f00"


def make(
    day: date,
    at: datetime | None = None,
    limit: int = 10,
    share: float = 0.5,
    price: Decimal = Decimal(1),
    out: Path = Path("out"),
    dry: bool = False,
    mode: Literal["full", "quick"] = "full",
    colour: Colour = Colour.RED,
    wait: timedelta = timedelta(),
    tags: list[str] = (),
    ids: tuple[int, ...] = (),
    what: int | str = 0,
    plain="x",
    count=3,
): ...


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("at=2026-11-16T08:30", datetime(2026, 11, 16, 8, 30)),  # noqa: DTZ001 - as it is written
        ("at=none", None),
        ("limit=7", 7),
        ("share=0.25", 0.25),
        ("price=9.99", Decimal("9.99")),
        ("out=a/b", Path("a/b")),
        ("dry=yes", True),
        ("dry=off", False),
        ("mode=quick", "quick"),
        ("colour=RED", Colour.RED),
        ("colour=#f00", Colour.RED),
        ("wait=1h 30m", timedelta(hours=1, minutes=30)),
        ("tags=a", ["a"]),
        ("ids=1", (1,)),
        ("what=5", 5),
        ("what=five", "five"),
        ("plain=a=b", "a=b"),
        ("count=8", 8),
    ],
)
def test_values_have_the_types_of_the_annotations(pair, expected):
    arguments = bind(make, "job.py:make", ["day=2026-11-16", pair], [])

    name = pair.partition("=")[0]
    assert arguments == {"day": date(2026, 11, 16), name: expected}
    assert type(arguments[name]) is type(expected)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (["--limit", "7"], {"limit": 7}),
        (["--limit=7"], {"limit": 7}),
        (["--dry"], {"dry": True}),
        (["--no-dry"], {"dry": False}),
        (["--dry=no"], {"dry": False}),
        (["--tags", "a", "--tags", "b"], {"tags": ["a", "b"]}),
        (["--plain", "--dry"], {"plain": "--dry"}),
        (["--share", "-1.5"], {"share": -1.5}),
    ],
)
def test_options_behind_the_dashes(rest, expected):
    found = bind(make, "job.py:make", [], ["--day", "2026-11-16", *rest])

    assert found == {"day": date(2026, 11, 16), **expected}


@pytest.mark.parametrize(
    ("pairs", "rest", "message"),
    [
        ([], [], r"job.py:make needs arguments \(day\): write -P day="),
        (["day=tomorrow"], [], "day is a date such as 2026-11-16, not 'tomorrow'"),
        (["day"], [], "-P takes NAME=VALUE, such as date=2026-11-16, not 'day'"),
        (["limits=1"], [], "job.py:make has no argument 'limits': did you mean 'limit'?"),
        (["zzz=1"], [], "has no argument 'zzz': it takes day, at, limit"),
        (["limit=many"], [], "limit is an int, not 'many'"),
        (["limit=1", "limit=2"], [], "limit is given 2 times, and is one value"),
        (["mode=slow"], [], "mode is one of full, quick, not 'slow'"),
        (["colour=blue"], [], "colour is one of RED, not 'blue'"),
        (["dry=maybe"], [], "dry is true or false, not 'maybe'"),
        (["wait=soon"], [], "wait is a timedelta such as 1h 30m, not 'soon'"),
        ([], ["--limit"], "--limit needs a value"),
        ([], ["today"], "write --NAME VALUE for each argument of job.py:make, not 'today'"),
    ],
)
def test_mistakes_are_refused(pairs, rest, message):
    with pytest.raises(Refused, match=message):
        bind(make, "job.py:make", pairs, rest)


def test_who_has_no_parameters_may_look_at_the_words_himself():
    assert bind(lambda: None, "job.py:make", [], ["anything", "--at", "all"]) == {}


JOB = """
    import sys
    from datetime import date
    from jetlet import Pipeline, sinks, sources

    def make(day: date, times: int = 1) -> Pipeline:
        p = Pipeline("daily")
        p.read_from(sources.items([f"{day:%d.%m.%Y}"] * times)).write_to(sinks.logger())
        return p

    def words():
        p = Pipeline("words")
        p.read_from(sources.items(sys.argv[1:])).write_to(sinks.logger())
        return p

    p = Pipeline("plain")
    p.read_from(sources.items(sys.argv[1:])).write_to(sinks.logger())
"""


@pytest.mark.parametrize(
    "given",
    [
        ["-P", "day=2026-11-16", "-P", "times=2"],
        ["--", "--day", "2026-11-16", "--times=2"],
        ["-P", "day=2026-11-16", "--", "--times", "2"],
    ],
)
def test_a_function_is_called_with_them(project, given):
    project.write("job_daily.py", JOB)
    done = project.jetlet("run", "job_daily.py:make", "--on", "embedded", *given)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == ["16.11.2026", "16.11.2026"]


@pytest.mark.parametrize("name", ["words", "p"])
def test_the_file_sees_what_is_behind_the_dashes(project, name):
    project.write("job_words.py", JOB)
    done = project.jetlet("run", f"job_words.py:{name}", "--on", "embedded", "--", "a", "--on", "b")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == ["a", "--on", "b"]


def test_a_plan_takes_them_too(project):
    project.write("job_plan.py", JOB)
    assert "needs arguments (day)" in project.jetlet("plan", "job_plan.py:make").output
    done = project.jetlet("plan", "job_plan.py:make", "-P", "day=2026-11-16")
    assert done.exit_code == 0, done.output


def test_a_pipeline_takes_none(project):
    project.write("job_none.py", JOB)
    done = project.jetlet("run", "job_none.py:p", "-P", "day=2026-11-16")
    assert done.exit_code == 2
    assert "is a Pipeline, which takes no arguments: name a function" in done.output
