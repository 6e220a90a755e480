"""Functions of sources and sinks: mistakes in their arguments, and what the objects say."""

from __future__ import annotations

import pickle

import pytest

from jetlet import sinks, sources
from jetlet.pipeline.source import BatchSource


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sources.csv("a.csv", delimeter=";"),
            "sources.csv has no parameter 'delimeter'; did you mean 'delimiter'?",
        ),
        (
            lambda: sources.text("a.txt", local_paralelism=2),
            "sources.text has no parameter 'local_paralelism'; did you mean 'local_parallelism'?",
        ),
        (
            lambda: sinks.noop(42, qqq=1),
            "sinks.noop has no parameter 'qqq'; it has name",
        ),
        (
            sources.item_stream,
            "sources.item_stream: missing a required argument: 'per_second'; write sources",
        ),
        (
            lambda: sources.socket("localhost", 80, 90),
            "sources.socket: too many positional arguments; write sources.socket(host: str, ",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_write(call, message):
    with pytest.raises(TypeError) as caught:
        call()

    assert str(caught.value).startswith(message)


def double(x):
    return 2 * x


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (lambda: sources.text("books/*.txt"), "sources.text('books/*.txt')"),
        (
            lambda: sources.csv(["a.csv", "b.csv"], header=False, types={0: int}),
            "sources.csv(['a.csv', 'b.csv'], header=False, types={...})",
        ),
        (lambda: sources.items(range(1000)), "sources.items(range(0, 1000))"),
        (lambda: sources.items([1, 2, 3, 4, 5]), "sources.items([1, 2, 3, 4, ...])"),
        (lambda: sources.items(iter([1])), "sources.items(<list_iterator>)"),
        (
            lambda: sources.files_stream(sources.text("s3://key:secret@bucket/in")),
            "sources.files_stream(sources.text('s3://bucket/in'))",
        ),
        (
            lambda: sources.text("old.txt").then(sources.tail("new.txt")),
            "sources.text('old.txt').then(sources.tail('new.txt'))",
        ),
        (lambda: sinks.client(double), "sinks.client(double)"),
        (sinks.collect, "sinks.collect()"),
        (
            lambda: sinks.text("s3://key:secret@bucket/x", storage_options={"secret": "secret"}),
            "sinks.text('s3://bucket/x', storage_options=...)",
        ),
        (
            lambda: sinks.sql("postgresql://user:secret@host/db", "t", settings={"a": "secret"}),
            "sinks.sql('postgresql://host/db', 't', settings=...)",
        ),
    ],
)
def test_sources_and_sinks_show_the_call_that_made_them_without_secrets(made, shown):
    assert repr(made()) == shown


def test_what_an_object_shows_travels_with_it():
    source = sources.text("books/*.txt", encoding="latin-1")

    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)


def test_what_is_made_without_a_function_shows_its_class_and_name():
    class Own(BatchSource):
        name = "mine"

        def splits(self, target):
            return []

        def read(self, split):
            return iter(())

    assert repr(Own()).endswith("Own mine>")


def test_functions_can_be_pickled():
    assert pickle.loads(pickle.dumps(sources.csv)) is sources.csv
