from __future__ import annotations

import sys

import pytest

from jetlet import sinks
from jetlet.errors import InvalidArgumentError


class TestCollect:
    def test_keeps_the_items(self):
        sink = sinks.collect()
        assert (len(sink), sink.items) == (0, [])
        sink.begin("run")
        sink.receive([1, None])
        sink.receive((2,))
        sink.finish(None)
        assert (sink.items, list(sink), len(sink)) == ([1, None, 2], [1, None, 2], 3)

    def test_starts_anew_with_every_run(self):
        sink = sinks.collect()
        sink.begin("first")
        sink.receive([1])
        taken = sink.items
        sink.begin("second")
        sink.receive([2])
        assert (taken, sink.items) == ([1], [2])

    def test_does_not_share_the_batch(self):
        sink = sinks.collect()
        batch = [1]
        sink.begin("run")
        sink.receive(batch)
        sink.receive([2])
        assert batch == [1]


class TestLogger:
    def test_prints_a_batch_in_one_piece(self, monkeypatch):
        written = []
        monkeypatch.setattr(sys.stdout, "write", written.append)
        sinks.logger("> ").receive(["a", 2, None])
        assert written == ["> a\n> 2\n> None\n"]

    def test_formats(self, capsys):
        sinks.logger(formatter=lambda item: f"{item:03}").receive([1, 22])
        assert capsys.readouterr().out == "001\n022\n"

    def test_refuses_what_cannot_work(self):
        with pytest.raises(InvalidArgumentError, match="formatter"):
            sinks.logger(formatter="{}")
        with pytest.raises(InvalidArgumentError, match="prefix"):
            sinks.logger(print)


class TestClient:
    def test_calls_the_function_with_every_item(self):
        found = []
        sink = sinks.client(found.append)
        sink.receive([1, None])
        assert found == [1, None]
        assert sink.name == "client-sink(append)"

    def test_refuses_what_is_no_function(self):
        with pytest.raises(InvalidArgumentError, match="write a function"):
            sinks.client([])


def test_noop_takes_part_in_the_protocol():
    sink = sinks.noop()
    sink.begin("run")
    writer = sink.open("run", "w")
    writer.write([1])
    sink.commit("run", [writer.finish()])
    sink.open("run", "v").abort()
    sink.abort("run")
    assert sink.name == "noop-sink"
