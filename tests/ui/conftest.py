"""A real browser, and what it is pointed at."""

from __future__ import annotations

import http.client
import json
import shutil
from urllib.parse import urlsplit

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1000",
]
LIMIT = 60
"""Seconds to wait for something on the page, which takes a few at the most."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("there is no chromium with its chromedriver: apt-get install chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


class Browser:
    """What a test does with the page."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        self.driver.get(url)

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def text(self, selector):
        return self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )

    def texts(self, selector):
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)",
            selector,
        )

    def attribute(self, selector, name):
        return self.driver.execute_script(
            "return document.querySelector(arguments[0])?.getAttribute(arguments[1])",
            selector,
            name,
        )

    def click(self, selector):
        self.wait(lambda: self.find(selector), f"there is no {selector}")
        # By script: what is redrawn in between must not be an error.
        self.driver.execute_script(
            "document.querySelector(arguments[0])"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
            selector,
        )

    def wait(self, condition, message="it never came"):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, LIMIT, 0.1).until(lambda _: condition(), message)

    def complaints(self):
        """What the console has, but for connections that ended with their server."""
        return [
            each["message"]
            for each in self.driver.get_log("browser")
            if "ERR_CONNECTION" not in each["message"] and "ERR_INCOMPLETE" not in each["message"]
        ]


@pytest.fixture
def browser(chromium):
    chromium.get_log("browser")
    yield Browser(chromium)
    chromium.get("about:blank")


class Caller:
    """Speaks HTTP with a page, politely or not."""

    def __init__(self, url):
        self.parts = urlsplit(url)
        self.host = self.parts.netloc

    def ask(self, path="", *, method="GET", prefix=None, body=None, **headers):
        connection = http.client.HTTPConnection(self.parts.hostname, self.parts.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            place = (self.parts.path if prefix is None else prefix) + path
            connection.request(method, place, body, {"Host": self.host} | named)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def state(self):
        status, body, _ = self.ask("state")
        assert status == 200
        return json.loads(body)

    def order(self, job_id, command, name=None, **headers):
        body = json.dumps({"command": command, "name": name})
        given = {"Origin": f"http://{self.host}", "Content-Type": "application/json"} | headers
        status, answer, _ = self.ask(f"order?{job_id}", method="POST", body=body, **given)
        return status, json.loads(answer) if answer else None


@pytest.fixture
def caller():
    return Caller
