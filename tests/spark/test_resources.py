"""What stages ask of machines, and what is said where these do not have it."""

from __future__ import annotations

import pytest

from jetlet import Pipeline, service, sinks, sources
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.spark.resources import GPUS, check_gpus


class Session:
    """Says what it is told to."""

    def __init__(self, **settings):
        self.conf = {key.replace("_", "."): value for key, value in settings.items()}


def dag(stage_of):
    p = Pipeline("gpus")
    stage_of(p.read_from(sources.items([1]))).write_to(sinks.noop())
    return p.plan()


async def ask(model, items):
    return items


MODEL = service(lambda context: None, gpus=2)
STAGES = [
    lambda s: s.map_batched(lambda model, items: items, service=MODEL, name="infer"),
    lambda s: s.map_batched(ask, service=MODEL, name="infer"),
    lambda s: s.map_using_service(MODEL, lambda model, x: x, name="infer"),
    lambda s: s.map_async(ask, service=MODEL, name="infer"),
]


@pytest.mark.parametrize("stage_of", STAGES)
def test_service_that_needs_more_than_the_session_gives_is_refused(stage_of):
    for settings, has in (({}, "none"), ({GPUS: "1"}, "gives it 1")):
        with pytest.raises(UnsupportedFeatureError, match=has) as caught:
            check_gpus(dag(stage_of), Session(**settings))
        assert "'infer'" in str(caught.value)
        assert f"{GPUS}=2" in str(caught.value)
    check_gpus(dag(stage_of), Session(**{GPUS: "2"}))


def test_service_that_needs_none_is_welcome_anywhere():
    check_gpus(dag(lambda s: s.map(abs)), Session())


@pytest.mark.parametrize("wrong", [-1, 0.5, "1", True])
def test_number_of_gpus_is_a_whole_number(wrong):
    with pytest.raises(InvalidArgumentError, match="gpus="):
        service(int, gpus=wrong)


@pytest.mark.spark
def test_job_is_refused_before_it_runs(spark_engine):
    p = Pipeline("gpus")
    STAGES[0](p.read_from(sources.items([1]))).write_to(sinks.collect())
    with pytest.raises(UnsupportedFeatureError, match="gives it none"):
        spark_engine.submit(p)
