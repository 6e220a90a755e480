"""Each example gives what a plain Python program gives that was written without it."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import operator
import re
import subprocess
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from jetlet import sinks
from jetlet.testing import verify_processor

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
NAMES = (
    "access_log",
    "async_tasks",
    "custom_processor",
    "enrich",
    "inference",
    "orders",
    "page_views",
    "silence_alert",
    "word_count",
)
ON_SPARK_ONLY = ("spark_stream",)


@pytest.fixture(scope="module", params=["embedded", pytest.param("spark", marks=pytest.mark.spark)])
def on(request):
    """The engine. All tests on Spark share a session: run(on="spark") joins the active one."""
    if request.param == "embedded":
        yield "embedded"
        return
    request.getfixturevalue("spark_engine")
    yield "spark"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import an example anew, in an empty directory, since some write files."""
    monkeypatch.chdir(tmp_path)

    def load(file):
        name = f"example_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        # As for a script, and so that pickle finds it.
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return lambda name: load(EXAMPLES / f"{name}.py")


def dead_letters(directory):
    parts = sorted(Path(directory).glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def words_of(book):
    return re.findall(r"\w+", (DATA / "books" / book).read_text().lower())


# --- The results ----------------------------------------------------------------------------


def test_word_count(load, on, capsys):
    example = load("word_count")
    counts = sinks.collect()
    example.counts.write_to(counts)
    example.p.run(on=on)

    expected = Counter()
    for book in (DATA / "books").glob("*.txt"):
        expected.update(words_of(book))
    assert expected.total() > 100_000
    assert Counter(dict(counts.items)) == expected
    assert len(counts.items) == len(expected)
    shown = re.findall(r"^ +\d+  (\w+) +([\d,]+) ", capsys.readouterr().out, re.MULTILINE)
    assert [(w, int(n.replace(",", ""))) for w, n in shown] == expected.most_common(10)


def test_access_log(load, on, capsys):
    example = load("access_log")
    pages = sinks.collect()
    example.pages.write_to(pages)
    example.p.run(on=on)

    requests, hosts, sizes, damaged = Counter(), defaultdict(set), Counter(), []
    for line in gzip.decompress((DATA / "access.log.gz").read_bytes()).decode().splitlines():
        fields = line.split('"')
        if len(fields) != 7 or not fields[1].endswith(" HTTP/1.1"):
            damaged.append(line)
            continue
        page = fields[1].split()[1].split("?")[0]
        status, size = fields[2].split()
        if int(status) < 400:
            requests[page] += 1
            hosts[page].add(line.split()[0])
            sizes[page] += int(size.replace("-", "0"))
    assert dict(pages.items) == {page: (requests[page], hosts[page], sizes[page]) for page in hosts}
    assert len(pages.items) == len(requests)

    letters = dead_letters("out/access-log/damaged")
    assert Counter(letter["item"] for letter in letters) == Counter(damaged)
    assert {letter["error_type"] for letter in letters} == {"ValueError"}
    assert 100 < len(damaged) < 300

    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    busiest = sorted(requests, key=lambda page: (-requests[page], page))[:10]
    assert [row[3] for row in shown[1:]] == busiest
    assert [int(row[1].replace(",", "")) for row in shown[1:]] == [len(hosts[p]) for p in busiest]


def test_orders(load, on, capsys):
    load("orders").p.run(on=on)

    with (DATA / "customers.csv").open(newline="") as file:
        countries = {row["id"]: row["country"] for row in csv.DictReader(file)}
    amounts = defaultdict(list)
    with (DATA / "orders.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            country = countries.get(row["customer_id"], "unknown")
            amounts[country].append(Decimal(row["amount"]))
    expected = sorted(
        ([c, str(len(a)), str(sum(a)), str(max(a))] for c, a in amounts.items()),
        key=lambda row: -Decimal(row[2]),
    )
    assert "unknown" in amounts
    (part,) = Path("out/orders").glob("part-*.csv")
    with part.open(newline="") as file:
        assert list(csv.reader(file)) == [["country", "orders", "amount", "biggest"], *expected]
    shown = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [row[:3] for row in expected]


@pytest.mark.slow
def test_inference(load, on, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    example = load("inference")
    example.pipeline().run(on=on)

    lines = [re.fullmatch(r"(\d): (\d+)% read correctly", line) for line in _lines(capsys)]
    assert [int(found[1]) for found in lines] == list(range(10))
    examples = example.train()
    model = example.load_model(None)
    right = Counter(
        answer for answer, guess in example.read_digits(model, examples) if answer == guess
    )
    shown = {answer: right[answer] / count for answer, count in _counts(examples).items()}
    assert [int(found[2]) for found in lines] == [round(100 * shown[n]) for n in range(10)]


def _counts(examples):
    return Counter(answer for _, answer in examples)


def _lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_enrich(load, on, capsys):
    example = load("enrich")
    example.pipeline().run(on=on)

    celsius = defaultdict(list)
    unknown = Counter()
    for number in range(1000):
        sensor = number % 300
        if sensor >= 290:
            unknown[sensor] += 1
        else:
            room = ("attic", "cellar", "kitchen", "study")[sensor % 4]
            celsius[room].append(10 + number % 25)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [[room, f"{sum(c) / len(c):.2f}"] for room, c in sorted(celsius.items())]
    letters = dead_letters("out/enrich/unknown")
    assert Counter(letter["item"]["sensor"] for letter in letters) == unknown
    assert all("the server says 404" in letter["error"] for letter in letters)


def test_async_tasks(load, capsys):
    example = load("async_tasks")
    job = example.app.run(on="embedded")

    expected = [{**r, "room": example.ROOMS[r["sensor"] % 4]} for r in example.READINGS]
    enriched = example.memory.messages("enriched")
    in_order = operator.itemgetter("sensor", "celsius")
    assert sorted(enriched, key=in_order) == sorted(expected, key=in_order)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    counts = Counter(reading["room"] for reading in expected)
    assert shown == [[room, f"{count:,}"] for room, count in sorted(counts.items())]
    assert job.metrics().containers[0]["process_calls"] == len(example.READINGS)


def test_page_views(load, capsys):
    text = gzip.decompress((DATA / "access.log.gz").read_bytes()).decode()
    expected = Counter(re.findall(r'"GET ([^ ?]+)\S* HTTP/[\d.]+" 200 ', text))
    example = load("page_views")
    example.app.run(on="embedded")
    shown = capsys.readouterr().out
    for count, page in re.findall(r" +([\d,]+)  (\S+)", shown):
        assert int(count.replace(",", "")) == expected[page]
    (busiest, _) = expected.most_common(1)[0]
    assert busiest in shown
    # The last count that was sent of each page.
    assert dict(example.memory.messages("counts")) == expected

    # The second run finds that everything was counted before.
    again = load("page_views")
    again.app.run(on="embedded")
    assert sorted(capsys.readouterr().out) == sorted(shown)
    assert again.memory.messages("counts") == []


def test_silence_alert(load, on, capsys):
    load("silence_alert").p.run(on=on)

    found = re.findall(r"(\w+) is silent since (\d+) s", capsys.readouterr().out)
    # The two gaps, and the end, at which one of them was silent anyway.
    expected = {("cellar", "50"), ("roof", "190"), ("cellar", "290"), ("kitchen", "290")}
    assert sorted(found) == sorted(expected)


@pytest.mark.spark
def test_spark_stream(load, capsys):
    example = load("spark_stream")
    example.p.run(on="spark", config=example.CONFIG)

    requests, errors = Counter(), Counter()
    for line in gzip.decompress((DATA / "access.log.gz").read_bytes()).decode().splitlines():
        fields = line.split('"')
        if len(fields) == 7 and fields[1].endswith(" HTTP/1.1"):
            hour = int(line.split(":")[1])
            requests[hour] += 1
            errors[hour] += fields[2].startswith(" 5")
    found = []
    for part in Path("out/spark_stream/per-hour").glob("part-*.csv"):
        with part.open(newline="") as file:
            found += [tuple(map(int, row.values())) for row in csv.DictReader(file)]
    assert sorted(found) == [(hour, requests[hour], errors[hour]) for hour in sorted(requests)]
    shown = re.findall(r"(\d+) h", capsys.readouterr().out)
    assert sorted(map(int, shown)) == [hour for hour in sorted(errors) if errors[hour] > 10]


def test_custom_processor(load, on, capsys):
    load("custom_processor").p.run(on=on)

    text = (DATA / "books" / "alice-in-wonderland.txt").read_text()
    expected = sorted(Counter(map(len, text.split())).items())
    shown = re.findall(r"(\d+) letters: +([\d,]+) words", capsys.readouterr().out)
    assert [(int(n), int(count.replace(",", ""))) for n, count in shown] == expected


def test_custom_processor_keeps_the_contract(load):
    verify_processor(
        load("custom_processor").CountByLength,
        input=["a", "bc", "d", "ef", "g"],
        expect_output=[(1, 3), (2, 2)],
        order_matters=False,
        snapshots=False,
    )


# --- The ways to start them -----------------------------------------------------------------


def output_of(*command, cwd):
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
def test_runs_as_a_script_and_by_the_command(name, tmp_path):
    file = EXAMPLES / f"{name}.py"
    script = output_of(sys.executable, file, "--on", "embedded", cwd=tmp_path)
    command = output_of(
        sys.executable, "-m", "jetlet", "run", file, "--on", "embedded", "--quiet", cwd=tmp_path
    )
    assert script
    assert command == script


@pytest.mark.spark
def test_script_runs_on_spark_and_says_nothing_else(tmp_path):
    file = EXAMPLES / "word_count.py"
    on_spark = output_of(sys.executable, file, cwd=tmp_path)
    assert on_spark == output_of(sys.executable, file, "--on", "embedded", cwd=tmp_path)


def test_every_example_is_tested():
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*NAMES, *ON_SPARK_ONLY}


def test_invented_data_is_what_the_script_makes(load):
    make_data = load("data/make_data")
    log = gzip.decompress((DATA / "access.log.gz").read_bytes()).decode()
    assert make_data.access_log() == log
    customers, orders = make_data.shop()
    assert (DATA / "customers.csv").read_text() == customers
    assert (DATA / "orders.csv").read_text() == orders
