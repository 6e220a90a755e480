"""MetricsServer: the metrics of jobs for Prometheus, over HTTP, from a thread of this process.

with MetricsServer(port=9464) as server, EmbeddedEngine() as engine:
    job = engine.submit(pipeline)
    server.add(job)
    job.join()
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from jetlet.errors import InvalidArgumentError, MissingDependencyError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from jetlet.metrics.job_collector import ExposedJob

_PROBES: Final = {"/health": "is_healthy", "/ready": "is_ready"}
"""What is asked for at a path."""
_PLAIN: Final = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))


class MetricsServer:
    """Serves ``/metrics``, to this machine alone unless ``host`` says otherwise.

    ``/health`` and ``/ready`` are for supervisors such as Kubernetes: 200 if all jobs are so, 503
    if not, and a line for each that says why. A job is ready while it runs, on members once all of
    them do; without any job nothing is. It is not healthy if it has failed, or if no snapshot has
    succeeded for several intervals.

    It listens once it is made; port 0 is a free one, and :attr:`port` says which. A job is looked
    at only when somebody asks. Raises :class:`~jetlet.errors.InvalidArgumentError` if the port is
    taken. All methods may be called from any thread. Needs ``pip install 'jetlet[prometheus]'``.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise MissingDependencyError(
                "serving metrics needs prometheus_client: pip install 'jetlet[prometheus]'"
            ) from None
        from jetlet.metrics.job_collector import JobCollector

        self.host = host
        self._lock = threading.Lock()
        self._collector = JobCollector()
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"cannot serve metrics at port {port} of {host}: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for a "
                f"free one"
            ) from error
        metrics = self._server.get_app()
        assert metrics is not None
        self._server.set_app(self._beside(metrics))
        self.port: int = self._server.server_port

    def _beside(self, metrics: WSGIApplication) -> WSGIApplication:
        """What answers to probes, and leaves all else to the metrics."""

        def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path not in _PROBES:
                return metrics(environ, start)
            found = [(job.name, job.health()) for job in list(self._collector.jobs)]
            is_well = all(getattr(health, _PROBES[path]) for _, health in found)
            if path == "/ready" and not found:
                is_well = False
            start("200 OK" if is_well else "503 Service Unavailable", [*_PLAIN])
            return [f"{name}: {health.reason}\n".encode() for name, health in found]

        return answer

    @property
    def url(self) -> str:
        """Where a scrape goes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def add(self, job: ExposedJob) -> None:
        """Expose a job from now on, also after its end."""
        with self._lock:
            self._collector.jobs.append(job)

    def remove(self, job: ExposedJob) -> None:
        """Forget a job."""
        with self._lock:
            self._collector.jobs = [each for each in self._collector.jobs if each is not job]

    def close(self) -> None:
        """Serve no more; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
