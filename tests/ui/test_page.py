"""The page in a real browser, beside real jobs."""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
import threading
import time

import pytest

from jetlet import (
    EmbeddedEngine,
    JobConfig,
    Pipeline,
    __version__,
    agg,
    sinks,
    sources,
    whole_item,
)
from jetlet.core import partition_id
from jetlet.testing import Timed, pause, scripted_stream
from jetlet.ui.page_jobs import LocalJobs
from jetlet.ui.page_server import PageServer

pytestmark = [pytest.mark.slow, pytest.mark.process]


def numbers(context):
    i = 0
    while True:
        yield range(i, i + 100)
        i += 100


def endless(name="numbers"):
    return sources.batch(name, numbers, batched=True)


class Brake:
    """A stage that is quick until it is told to be slow."""

    def __init__(self):
        self.is_on = threading.Event()

    def __call__(self, item):
        if self.is_on.is_set():
            sum(range(20_000))
        return item


@pytest.fixture
def engine():
    with EmbeddedEngine() as engine:
        yield engine


def number(text):
    """The first number of a text such as ``48.7 k/s``."""
    value, unit = text.removesuffix("/s").split(" ") if " " in text else (text[:-2], "")
    return float(value.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6}[unit]


def read_so_far(browser):
    return int(browser.text("#figures div:nth-child(2) dd").replace(",", "") or 0)


def test_the_dag_appears_rates_move_and_a_slow_stage_turns_busy_and_is_named(engine, browser):
    brake = Brake()
    p = Pipeline("clicks")
    p.read_from(endless()).map(brake, name="enrich").write_to(sinks.noop(name="out"))
    engine.submit(p)
    browser.open(engine.ui().url)
    browser.wait(lambda: len(browser.find(".vertex")) == 3)
    names = [each.get_attribute("data-vertex") for each in browser.find(".vertex")]
    assert names == ["numbers", "enrich", "out"]
    assert browser.text("#name") == "clicks"
    assert len(browser.find("#drawing .edge")) == 2
    before = read_so_far(browser)
    browser.wait(lambda: read_so_far(browser) > before, "nothing moved")
    browser.wait(lambda: number(browser.text("#drawing .rate")) > 0, "no rate")

    brake.is_on.set()

    enrich = "[data-vertex=enrich]"
    browser.wait(
        lambda: float(browser.attribute(enrich, "data-busy") or 0) > 0.9, "it never turned busy"
    )
    browser.wait(
        lambda: browser.text("#sentence").startswith("enrich is the bottleneck"), "not named"
    )
    assert "named" in browser.attribute(enrich, "class")
    assert browser.text("#spoken").startswith("clicks running. enrich is the bottleneck")
    assert browser.complaints() == []


def test_a_vertex_is_chosen_by_mouse_and_by_keyboard(engine, browser):
    from selenium.webdriver import ActionChains, Keys

    p = Pipeline("chosen")
    p.read_from(endless()).map(str, name="text").write_to(sinks.noop(name="out"))
    engine.submit(p)
    browser.open(engine.ui().url)
    browser.click("[data-vertex=text]")
    browser.wait(lambda: browser.text("#details h2") == "text")
    assert "received" in browser.text("#details")
    browser.driver.execute_script(
        "getSelection().selectAllChildren(document.querySelector('#details h2'))"
    )
    before = read_so_far(browser)
    browser.wait(lambda: read_so_far(browser) > before)
    assert browser.driver.execute_script("return String(getSelection())") == "text"
    browser.driver.execute_script("getSelection().removeAllRanges()")
    browser.driver.execute_script("document.querySelector('[data-vertex=text]').focus()")
    ActionChains(browser.driver).send_keys(Keys.ARROW_DOWN, Keys.ENTER).perform()
    browser.wait(lambda: browser.text("#details h2") == "out", "the keyboard did nothing")
    browser.driver.execute_script("document.querySelector('#tabs [role=tab]').focus()")
    first = browser.text("#tabs [aria-selected=true]")
    ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT).perform()
    browser.wait(lambda: browser.text("#tabs [aria-selected=true]") != first)


def test_buttons_suspend_resume_and_export(engine, browser, tmp_path):
    p = Pipeline("stopped")
    p.read_from(endless()).write_to(sinks.noop())
    job = engine.submit(p, JobConfig(snapshot_dir=tmp_path))
    browser.open(engine.ui().url)
    browser.click("[data-order=suspend]")
    browser.wait(lambda: browser.text("#status") == "suspended")
    assert job.status.value == "suspended"
    browser.click("[data-order=export]")
    browser.wait(lambda: browser.find("#buttons input"))
    browser.find("#buttons input")[0].send_keys("kept\n")
    browser.wait(lambda: "“kept”" in browser.text("#notice"))
    browser.click("[data-order=resume]")
    browser.wait(lambda: browser.text("#status") == "running")


def test_a_job_is_cancelled_when_that_was_asked_for_twice(engine, browser):
    p = Pipeline("unwanted")
    p.read_from(endless()).write_to(sinks.noop())
    job = engine.submit(p)
    browser.open(engine.ui().url)
    browser.click("[data-order=cancel]")
    browser.wait(lambda: "Really cancel unwanted?" in browser.text("[data-order=cancel]"))
    assert job.status.value == "running"
    browser.click("[data-order=cancel]")
    browser.wait(lambda: browser.text("#status") == "cancelled")
    assert job.status.value == "cancelled"


def test_a_job_that_does_not_come_to_a_stop_can_be_cancelled(engine, browser, tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def hang(item):
        entered.set()
        leave.wait()
        return item

    p = Pipeline("stuck")
    p.read_from(endless()).map(hang, name="hang").write_to(sinks.noop())
    job = engine.submit(p, JobConfig(snapshot_dir=tmp_path))
    try:
        entered.wait()
        browser.open(engine.ui().url)
        browser.click("[data-order=suspend]")
        browser.wait(lambda: browser.text("#notice") == "Suspend: under way")
        assert browser.attribute("[data-order=suspend]", "disabled") is not None
        browser.click("[data-order=cancel]")
        browser.wait(lambda: "Really cancel" in browser.text("[data-order=cancel]"))
        browser.click("[data-order=cancel]")
        browser.wait(lambda: browser.text("#status") == "cancelled")
        assert job.status.value == "cancelled"
    finally:
        leave.set()


def test_the_log_is_filtered_by_text_and_level(engine, browser):
    from selenium.webdriver.support.ui import Select

    p = Pipeline("logged")
    p.read_from(endless()).write_to(sinks.noop())
    page = engine.ui()
    engine.submit(p)
    log = logging.getLogger("jetlet.tests")
    for n in range(3):
        log.warning("warning %d <b>", n)
    log.error("error 1")
    browser.open(page.url)
    browser.click("#tab-logs")

    def lines():
        rows = [row.split(" ", 2)[2] for row in browser.texts("#log li:not(.empty)")]
        return [row for row in rows if row.startswith(("warning", "error"))]

    browser.wait(lambda: lines() == ["error 1", *(f"warning {n} <b>" for n in (2, 1, 0))])
    browser.find("#panel input")[0].send_keys("ING 1")
    browser.wait(lambda: lines() == ["warning 1 <b>"])
    Select(browser.find("#panel select")[0]).select_by_value("error")
    browser.wait(lambda: "is like that" in browser.text("#log"))


def test_of_many_dead_letters_the_latest_are_shown(engine, browser):
    def fail(item):
        raise ValueError(f"no {item}")

    p = Pipeline("bad")
    stage = p.read_from(sources.items(range(100))).map(fail, name="fail", on_error="skip")
    stage.write_to(sinks.noop())
    page = engine.ui()
    engine.submit(p).join()
    browser.open(page.url)
    browser.click("#tab-letters")
    browser.wait(lambda: browser.find("#panel summary"))
    assert browser.text("#tab-letters") == "Dead letters (100)"
    shown = len(browser.find("#panel summary"))
    assert browser.text("#panel p") == f"The latest {shown} of 100."


def test_what_is_focused_stays_so_when_something_comes(engine, browser):
    from selenium.webdriver import ActionChains, Keys

    def fail(item):
        raise ValueError(f"no {item}")

    items = [1]
    p = Pipeline("bad")
    source = sources.stream("told", create=lambda context: items, fill=hand_over)
    stage = p.read_from(source).without_timestamps().map(fail, name="fail", on_error="skip")
    stage.write_to(sinks.noop())
    engine.submit(p)
    browser.open(engine.ui().url)
    browser.click("#tab-letters")
    browser.wait(lambda: len(browser.find("#panel summary")) == 1)
    browser.driver.execute_script("document.querySelector('#panel summary').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: browser.find("#panel details[open]"))
    items.append(2)
    browser.wait(lambda: len(browser.find("#panel summary")) == 2)
    assert browser.text("#tab-letters") == "Dead letters (2)"
    assert "no 1" in browser.driver.execute_script("return document.activeElement.textContent")
    assert "no 1" in browser.text("#panel details[open] summary")


def test_a_page_for_looking_only_has_no_buttons(browser):
    p = Pipeline("looked-at")
    p.read_from(endless()).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        url = engine.ui(read_only=True).url
        engine.submit(p)
        browser.open(url)
        browser.wait(lambda: browser.text("#status") == "running")
        assert browser.find("#buttons button") == []


EVIL = "<script>window.wasHere = 1</script><img src=x onerror='window.wasHere = 1'>"


def test_html_in_a_job_is_text(engine, browser):
    def fail(item):
        raise ValueError(f"cannot take {item}")

    p = Pipeline("evil <b>name</b>")
    stage = p.read_from(sources.items([EVIL])).map(fail, name="<i>stage</i>", on_error="skip")
    stage.write_to(sinks.noop())
    page = engine.ui()
    engine.submit(p).join()
    browser.open(page.url)
    browser.wait(lambda: browser.find("#tab-letters"))
    browser.click("#tab-letters")
    browser.wait(lambda: EVIL in browser.text("#panel summary code"))
    assert browser.text("#name") == "evil <b>name</b>"
    assert browser.find("#panel script, #panel img, h1 b, #drawing i") == []
    assert browser.driver.execute_script("return window.wasHere") is None
    assert "in fail" in browser.text("#panel pre")


def hand_over(items, buffer):
    while items:
        buffer.add(items.pop())


def test_timestamps_that_are_no_milliseconds_are_shown_as_they_are(engine, browser):
    source = sources.stream("once", create=lambda context: [1], fill=hand_over)
    p = Pipeline("nanoseconds")
    p.read_from(source).with_timestamps(lambda n: 1_700_000_000_000_000_000 + n, 0).write_to(
        sinks.noop()
    )
    engine.submit(p)
    browser.open(engine.ui().url)
    browser.wait(lambda: browser.find("#tab-time"))
    browser.click("#tab-time")
    browser.wait(lambda: "17000000" in browser.text("#panel td:nth-child(2)"))
    assert "17000000" in browser.text("#details")
    assert browser.complaints() == []


def test_each_partition_of_a_source_has_its_event_time(engine, browser):
    stream = scripted_stream([Timed(1000, 1), pause(3_600_000)], [Timed(5000, 5), pause(3_600_000)])
    p = Pipeline("parted")
    stage = p.read_from(stream, name="read", local_parallelism=1)
    stage.with_native_timestamps(0, idle_timeout=1).write_to(sinks.noop())
    engine.submit(p)
    browser.open(engine.ui().url)
    browser.click("#tab-time")
    browser.wait(
        lambda: "Idle, so that nobody waits for them: read 0, read 1." in browser.text("#panel")
    )
    rows = [row.text.split() for row in browser.find("#panel div:last-of-type tbody tr")]
    assert rows == [
        ["read", number, "0", "1970-01-01", f"00:00:0{time}.000", "idle"]
        for number, time in [("0", 1), ("1", 5)]
    ]


def test_the_partition_that_most_keys_are_in_is_told(engine, browser):
    p = Pipeline("skewed")
    keyed = p.read_from(endless()).grouping_key(lambda i: "hot" if i % 1000 else "cold")
    keyed.rolling_aggregate(agg.counting(), name="count").write_to(sinks.noop())
    engine.submit(p, JobConfig(default_parallelism=2))
    browser.open(engine.ui().url)
    browser.click("[data-vertex=count]")
    hot = f"partition {partition_id('hot')}"
    browser.wait(lambda: "a sample of" in browser.text("#details"), "nothing of partitions")
    assert browser.text("#details dl:last-of-type dt") == hot


def test_who_does_not_know_the_token_gets_nothing(engine, browser):
    p = Pipeline("secret")
    p.read_from(endless()).write_to(sinks.noop())
    engine.submit(p)
    page = engine.ui()
    browser.open(f"http://127.0.0.1:{page.port}/")
    assert browser.find("#name") == []
    assert "secret" not in browser.driver.page_source


def test_it_fits_on_a_small_screen(engine, browser):
    p = Pipeline("small")
    stage = p.read_from(endless()).map(
        str, name="a stage with quite a long name, such as some have"
    )
    for i in range(4):
        stage.write_to(sinks.noop(name=f"out-{i}"))
    other = Pipeline(
        "another job, whose name is such that it would need much more room than there is"
    )
    other.read_from(sources.items([1])).write_to(sinks.noop())
    page = engine.ui()
    engine.submit(other).join()
    engine.submit(p)
    size = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.open(page.url)
        browser.wait(lambda: len(browser.find(".vertex")) == 6)
        assert len(browser.find("#jobs option")) == 2
        width = "return document.documentElement.scrollWidth"
        assert browser.driver.execute_script(width) <= 320
        begin, end = browser.driver.execute_script(
            "const box = document.querySelector('.vertex').getBoundingClientRect();"
            "return [box.left, box.right]"
        )
        assert 0 <= begin < end <= 320
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_stays_when_the_job_and_its_process_are_gone(browser):
    p = Pipeline("over")
    p.read_from(sources.items(range(5))).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        url = engine.ui().url
        engine.submit(p).join()
        browser.open(url)
        browser.wait(lambda: browser.text("#status") == "completed")
    browser.wait(lambda: "seen last" in browser.text("#notice"))
    assert browser.text("#figures div:nth-child(2) dd") == "5"
    assert len(browser.find(".vertex")) == 2


class Passing(LocalJobs):
    """Jobs that are forgotten when a test says so, as those of another process are at its end."""

    def __init__(self):
        super().__init__()
        self.gone = set()

    def summaries(self):
        return [each for each in super().summaries() if each["id"] not in self.gone]

    def state(self, job_id):
        return None if job_id in self.gone else super().state(job_id)


def test_what_was_seen_of_a_job_that_is_gone_stays_until_there_is_another(engine, browser):
    jobs = Passing()
    running = []

    def begin(name):
        p = Pipeline(name)
        p.read_from(endless()).write_to(sinks.noop())
        running.append(engine.submit(p))
        jobs.add(running[-1])

    def end():
        jobs.gone.add(running[-1].id)
        browser.wait(lambda: f"{running[-1].name} runs no more" in browser.text("#notice"))
        assert browser.text("#status") == "gone"
        assert len(browser.find(".vertex")) == 2
        assert browser.find("#buttons button") == []

    def shows(name):
        browser.wait(lambda: (browser.text("#name"), browser.text("#status")) == (name, "running"))
        assert browser.text("#notice") == ""

    with PageServer(jobs) as server:
        browser.open(server.url)
        browser.wait(lambda: browser.text("#status") == "no job runs")
        begin("first")
        shows("first")
        end()
        begin("second")
        shows("second")
        # One that was chosen stays.
        browser.open(f"{server.url}?#{running[-1].id}")
        shows("second")
        end()
        begin("third")
        browser.wait(lambda: browser.text("#jobs option") == "third (running)")
        assert browser.text("#name") == "second"
        browser.find("#jobs option")[0].click()
        shows("third")
        assert browser.complaints() == []


def test_a_report_opens_without_a_server(engine, browser, tmp_path):
    p = Pipeline("reported")
    counted = p.read_from(sources.items(["a", EVIL, "a"])).grouping_key(whole_item)
    counted.aggregate(agg.counting()).write_to(sinks.noop())
    job = engine.submit(p)
    job.join()
    job.report(tmp_path / "report.html")

    browser.open((tmp_path / "report.html").as_uri())

    browser.wait(lambda: browser.text("#status") == "completed")
    assert browser.text("#figures div:nth-child(2) dd") == "3"
    assert len(browser.find(".vertex")) >= 3
    assert browser.find("#buttons button") == []
    assert f"(jetlet {__version__}, python {platform.python_version()}" in browser.text("#footer")
    assert browser.complaints() == []


@pytest.mark.spark
def test_stages_on_spark_that_run_are_told_of_and_end(spark_engine, browser, tmp_path):
    def wait(item):
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        return item

    p = Pipeline("stages")
    counted = p.read_from(sources.items(range(9))).map(wait, name="wait").grouping_key(whole_item)
    counted.aggregate(agg.counting(), name="count").write_to(sinks.noop(name="out"))
    job = spark_engine.submit(p)
    browser.open(spark_engine.ui().url)
    browser.wait(lambda: "task" in browser.text("[data-vertex=wait]"), "it never began")
    assert "not begun" in browser.text("[data-vertex=out]")
    assert "running" in browser.text("#panel th:nth-child(3)")
    (tmp_path / "go").touch()
    job.join()
    browser.wait(lambda: browser.text("#status") == "completed")
    assert "took the most time" in browser.text("#sentence")
    assert browser.complaints() == []


@pytest.mark.cluster
@pytest.mark.fault
def test_a_killed_member_shows_up_as_a_restart(browser, tmp_path):
    p = Pipeline("killed")
    stage = p.read_from(endless()).rebalance().map(lambda i: (i, os.getpid()))
    stage.write_to(sinks.noop())
    config = JobConfig(
        processing_guarantee="exactly-once", snapshot_dir=tmp_path, snapshot_interval=0.2
    )
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(p, config)
        browser.open(engine.ui().url)
        browser.click("#tab-members")
        browser.wait(lambda: "process" in browser.text("#panel tbody tr td:nth-child(5)"))
        browser.wait(lambda: job.metrics().snapshots["taken"], "no snapshot was taken")
        place = browser.text("#panel tbody tr td:nth-child(5)")
        os.kill(int(place.rsplit(" ", 1)[1]), signal.SIGKILL)
        browser.click("#tab-snapshots")
        browser.wait(lambda: re.search(r"member \d", browser.text("#panel")), "no restart is shown")
        browser.wait(lambda: browser.text("#status") == "running")
        restarts = browser.find("#figures div")[-1].text
    assert restarts.startswith("restarts")
