"""The server by itself: who gets what."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError, JetletError
from jetlet.ui.page_server import MAX_CONNECTIONS, SCRIPTS, PageServer, dumped


class FakeJobs:
    """One job, which notes what it is told."""

    def __init__(self):
        self.orders = []
        self.error = None

    def summaries(self):
        return [{"id": "j1", "job": "one", "status": "running"}]

    def state(self, job_id):
        return {"id": "j1", "can": ["cancel"]} if job_id == "j1" else None

    def order(self, job_id, command, name):
        if self.error is not None:
            raise self.error
        self.orders.append((job_id, command, name))


@pytest.fixture
def jobs():
    return FakeJobs()


@pytest.fixture
def page(jobs):
    with PageServer(jobs) as server:
        yield server


def test_page_loads_nothing_from_anywhere_else(page, caller):
    status, body, headers = caller(page.url).ask()

    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    for path in ("", *SCRIPTS, "page.css"):
        _, body, _ = caller(page.url).ask(path)
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert "innerHTML" not in text


@pytest.mark.parametrize("prefix", ["/", "", "/wrong/", "//", "/%00/"])
def test_without_the_token_there_is_nothing(page, caller, prefix):
    for path in ("", "state", "events", *SCRIPTS):
        status, body, _ = caller(page.url).ask(path, prefix=prefix or "/")
        assert (status, body) == (404, b"")


def test_token_without_its_slash_or_beginning_is_not_enough(page, caller):
    for prefix in (f"/{page.token}", f"/{page.token[:-1]}/", f"/{page.token}x/"):
        assert caller(page.url).ask("", prefix=prefix)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "a:b", "[", ""])
def test_a_name_that_leads_here_is_not_served(page, caller, host):
    assert caller(page.url).ask("state", Host=host.format(port=page.port))[0] == 404


def test_names_of_this_machine_are_served(page, caller):
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert caller(page.url).ask("state", Host=f"{host}:{page.port}")[0] == 200


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1"])
def test_a_port_that_is_forwarded_from_another_one_is_served(page, jobs, caller, host):
    asker = caller(page.url)
    here = {"Host": host, "Origin": f"http://{host}"}

    assert asker.ask("state", Host=host)[0] == 200
    assert asker.order("j1", "cancel", **here | {"Origin": f"http://{asker.host}"})[0] == 404
    assert asker.order("j1", "cancel", **here | {"Origin": "http://evil.example:9000"})[0] == 404
    assert jobs.orders == []
    assert asker.order("j1", "cancel", **here) == (200, {"error": None})


def test_what_makes_no_sense_is_refused_and_says_nothing_on_the_terminal(page, caller, capfd):
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        connection.sendall(b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.makefile("rb").readline() == b"HTTP/1.0 404 Not Found\r\n"
    asker = caller(page.url)
    origin = f"http://{asker.host}"
    assert asker.ask("order?j1", method="POST", body="[" * 4000, Origin=origin)[0] == 400
    assert capfd.readouterr().err == ""


# --- Without the token ----------------------------------------------------------------------


def connections(page, number):
    return [socket.create_connection(("127.0.0.1", page.port), timeout=30) for _ in range(number)]


def test_nobody_can_take_all_threads_and_files_of_the_process(page, caller, monkeypatch):
    # Those that are let in stay, or their end could be taken for a refusal.
    monkeypatch.setattr("jetlet.ui.page_server.PATIENCE", 600.0)
    before = threading.active_count()
    opened = connections(page, MAX_CONNECTIONS + 40)
    # Those that are refused are closed at once; it takes them in the order in which they came.
    assert [each.recv(1) for each in opened[MAX_CONNECTIONS:]] == [b""] * 40
    assert threading.active_count() <= before + MAX_CONNECTIONS
    for each in opened:
        each.close()
    while threading.active_count() > before:
        pass
    assert caller(page.url).ask("state")[0] == 200


def test_a_process_without_threads_says_nothing_and_serves_again(page, caller, monkeypatch, capfd):
    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for each in connections(page, MAX_CONNECTIONS + 1):
            with each:
                assert each.recv(1) == b""
    assert caller(page.url).ask("state")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_request_has_to_come_in_time_as_a_whole(jobs, monkeypatch):
    monkeypatch.setattr("jetlet.ui.page_server.PATIENCE", 1.0)
    is_over = threading.Event()
    with PageServer(jobs) as page:
        [connection] = connections(page, 1)

        def drip():
            with suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\nX-Long: ")
                while not is_over.wait(0.05):
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        with connection, suppress(ConnectionError):
            # A closed connection, and no answer, although no pause was ever a long one.
            assert connection.recv(1) == b""
        is_over.set()
        dripping.join()


def test_orders_come_from_the_page_itself(page, jobs, caller):
    asker = caller(page.url)
    for origin in ("http://evil.example", "null", f"https://{asker.host}", "http://localhost:1"):
        assert asker.order("j1", "cancel", Origin=origin)[0] == 404
    assert asker.ask("order?j1", method="POST", body='{"command": "cancel"}')[0] == 404
    assert jobs.orders == []

    assert asker.order("j1", "cancel") == (200, {"error": None})
    assert jobs.orders == [("j1", "cancel", None)]


def test_another_site_may_not_read(page, caller):
    assert caller(page.url).ask("state", Origin="http://evil.example")[0] == 404


def test_looking_never_changes_anything(page, jobs, caller):
    for path in ("order?j1", "cancel?j1", "order", "cancel"):
        assert caller(page.url).ask(path)[0] == 404
    assert jobs.orders == []


@pytest.mark.parametrize("body", ["", "x", "[]", "{}", '{"command": 1, "name": 2}', "9" * 5000])
def test_an_order_that_makes_no_sense_is_refused(page, jobs, caller, body):
    asker = caller(page.url)
    origin = f"http://{asker.host}"

    assert asker.ask("order?j1", method="POST", body=body, Origin=origin)[0] == 400
    assert jobs.orders == []


def test_what_a_job_has_against_an_order_is_told(page, jobs, caller):
    jobs.error = JetletError("it takes no snapshots")
    assert caller(page.url).order("j1", "suspend") == (409, {"error": "it takes no snapshots"})
    jobs.error = OSError("disk full")
    assert caller(page.url).order("j1", "export", "a") == (409, {"error": "OSError: disk full"})


def test_a_page_for_looking_only_has_no_buttons_and_takes_no_orders(jobs, caller):
    with PageServer(jobs, read_only=True) as page:
        assert caller(page.url).state()["job"]["can"] == []
        assert caller(page.url).order("j1", "cancel")[0] == 403
    assert jobs.orders == []


def test_port_that_is_taken_is_refused(page, jobs):
    with pytest.raises(InvalidArgumentError, match=f"port {page.port} of 127.0.0.1"):
        PageServer(jobs, page.port)


def test_each_page_has_an_address_that_nobody_can_guess(jobs):
    with PageServer(jobs) as one, PageServer(jobs) as other:
        assert one.token != other.token
        assert len(one.token) >= 24


def test_events_end_with_the_last_state(jobs, caller):
    page = PageServer(jobs)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(caller(page.url).ask("events?j1")))
    thread.start()
    while not page._streams:
        pass
    page.close()
    thread.join()
    status, body, headers = answers[0]
    first, *_, last = body.decode().strip().split("\n\n")

    assert status == 200
    assert headers["Content-Type"] == "text/event-stream"
    assert json.loads(first.removeprefix("data: "))["job"]["id"] == "j1"
    assert last.startswith("event: over")


def test_nothing_is_left_when_a_page_is_closed(jobs, caller):
    before = set(threading.enumerate())
    page = PageServer(jobs)
    caller(page.url).state()
    page.close()
    page.close()

    assert {t for t in set(threading.enumerate()) - before if t.name == "jetlet-page"} == set()


def test_whatever_is_in_a_state_becomes_json():
    assert json.loads(dumped({"a": float("nan"), "b": [1, {"c": float("inf")}], 3: {1}})) == {
        "a": "nan",
        "b": [1, {"c": "inf"}],
        "3": "{1}",
    }


# --- Of an engine ---------------------------------------------------------------------------


def test_engine_shows_its_jobs_and_takes_orders(caller, tmp_path):
    started = threading.Event()
    p = Pipeline("endless")
    endless = sources.batch("endless", lambda context: iter(lambda: started.set() or 1, 2))
    p.read_from(endless).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        page = engine.ui()
        assert engine.ui() is page
        job = engine.submit(p, JobConfig(snapshot_dir=tmp_path))
        started.wait()
        asker = caller(page.url)
        shown = asker.state()["job"]
        assert (shown["job"], shown["id"], shown["where"]) == ("endless", job.id, "in this process")
        assert shown["can"] == ["suspend", "restart", "export", "cancel"]
        assert [box["name"] for box in shown["shape"]["boxes"]] == ["endless", "noop-sink"]
        assert asker.order(job.id, "suspend") == (200, {"error": None})
        assert asker.state()["job"]["can"] == ["resume", "export", "cancel"]
        assert asker.order(job.id, "export", "kept") == (200, {"error": None})
        assert asker.order(job.id, "resume") == (200, {"error": None})
        status, answer = asker.order(job.id, "explode")
        assert (status, "can be asked to" in answer["error"]) == (409, True)
        assert asker.order("gone", "cancel")[0] == 409
        assert asker.order(job.id, "cancel") == (200, {"error": None})
        last = asker.state()["job"]
        assert (last["status"], last["can"]) == ("cancelled", [])


@pytest.mark.parametrize(("name", "value"), [("read_only", True), ("port", 1), ("host", "0.0.0.0")])
def test_a_page_that_is_not_as_it_is_asked_for_is_refused(name, value):
    with EmbeddedEngine() as engine:
        page = engine.ui()
        with pytest.raises(InvalidArgumentError) as refused:
            engine.ui(**{name: value})
        assert f"call engine.ui({name}={value!r}) first" in str(refused.value)
        assert page.token not in str(refused.value)
        assert engine.ui(page.port, page.host) is page


def test_a_page_for_looking_only_stays_one():
    with EmbeddedEngine() as engine:
        page = engine.ui(read_only=True)
        assert engine.ui() is engine.ui(read_only=True) is page
        assert page.read_only


def test_job_that_asks_for_a_page_is_told_where_it_is(capsys):
    p = Pipeline("shown")
    p.read_from(sources.items([1])).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        engine.submit(p, JobConfig(ui=True)).join()
        url = engine.ui().url

    assert f"shown: {url}" in capsys.readouterr().err
