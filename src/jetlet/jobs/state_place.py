"""Where the state of each vertex of a job is kept, as its stages and its configuration say."""

from __future__ import annotations

from jetlet.core.dag import DAG
from jetlet.core.state_on_disk import DISK
from jetlet.core.traits import State
from jetlet.core.vertex import Vertex
from jetlet.errors import UnsupportedFeatureError
from jetlet.jobs.config import JobConfig

__all__ = ["place_state"]


def place_state(dag: DAG, config: JobConfig) -> None:
    """Tell the vertices; refuse what cannot be on disk. Call it where the job is submitted."""
    on_disk = False
    for vertex in dag:
        vertex.disk = None
        if (vertex.state or config.default_state) != DISK:
            continue
        if vertex.traits.keeps_on_disk:
            vertex.disk = config.state_on_disk
            vertex.in_columns = False
            on_disk = True
        elif _is_table(vertex):
            raise UnsupportedFeatureError(
                f"{vertex.name!r} keeps its state in memory, whatever the job's configuration "
                f"says: leave state and state_memory as they are by default, and say at each stage "
                f'that is to have its state on disk, .map_stateful(..., state="disk"), or '
                f'JobConfig(state="memory", state_memory="1 GiB") for their limit'
            )
    if not on_disk:
        settings = ("state_memory", "state_dir", *(["state"] if config.state == DISK else []))
        config.tell_ignored(settings, "a job none of whose stages has its state on disk")


def _is_table(vertex: Vertex) -> bool:
    """True if it keeps something for each key, or might."""
    return vertex.keeps_tables and vertex.traits.state is not State.NONE
