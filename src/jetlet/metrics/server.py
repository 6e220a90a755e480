"""MetricsServer: the metrics of jobs for Prometheus, over HTTP, from a thread of this process.

with MetricsServer(port=9464) as server, EmbeddedEngine() as engine:
    job = engine.submit(pipeline)
    server.add(job)
    job.join()
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from jetlet.errors import InvalidArgumentError
from jetlet.metrics.exposition import CONTENT_TYPE, ExposedJob, exposition

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

logger = logging.getLogger("jetlet.metrics")

PATH: Final = "/metrics"
TIMEOUT: Final = 5.0
"""Seconds that a client has to say what it wants."""


class MetricsServer:
    """Serves ``/metrics``, to this machine alone unless ``host`` says otherwise.

    It listens once it is made; port 0 is a free one, and :attr:`port` says which. A job is looked
    at only when somebody asks. Raises :class:`~jetlet.errors.InvalidArgumentError` if the port is
    taken. All methods may be called from any thread.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.host = host
        self._jobs: list[ExposedJob] = []
        try:
            self._server = _listen(host, port, self)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"cannot serve metrics at port {port} of {host}: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for a "
                f"free one"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="jetlet-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a scrape goes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"

    def add(self, job: ExposedJob) -> None:
        """Expose a job from now on, also after its end."""
        self._jobs = [*self._jobs, job]

    def remove(self, job: ExposedJob) -> None:
        """Forget a job."""
        self._jobs = [each for each in self._jobs if each is not job]

    def page(self) -> str:
        """What a scrape gets."""
        return exposition(self._jobs)

    def close(self) -> None:
        """Serve no more; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _listen(host: str, port: int, source: MetricsServer) -> ThreadingHTTPServer:
    # Imported when needed: it brings a good part of the standard library with it.
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from socketserver import TCPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT
        server_version = "jetlet"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, f"metrics are at {PATH}")
                return
            try:
                body = source.page().encode()
            except Exception:
                logger.exception("cannot tell the metrics")
                self.send_error(500)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            logger.debug(format, *args)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def server_bind(self) -> None:
            # Not the one of HTTPServer: that looks up the host's name, which may take seconds.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = host, self.server_address[1]

        def handle_error(self, request: object, client_address: object) -> None:
            # A client that went away is not worth a traceback on the terminal.
            logger.debug("a request for metrics from %s failed", client_address)

    return Server((host, port), Handler)
