"""PageServer: serves the page of jobs to browsers, over HTTP, from threads of this process.

What changes is sent as server-sent events, which need nothing but the standard library here and in
the browser; nothing is measured while nobody looks.

The page can stop jobs and shows what is in them, so it is for those who know the token in its
address, and for them alone:

- without the token nothing is answered, not even that there is a page;
- the Host that is asked for must be one of ours, or a site could have its name lead here;
- what changes anything is a POST whose Origin is the page itself, never a GET;
- the page may load nothing but its own files, and nobody may put it into a frame;
- whoever reaches the port gets a bounded number of connections, each for a bounded time.
"""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import math
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final, Self
from urllib.parse import urlsplit

from jetlet.errors import InvalidArgumentError, JetletError
from jetlet.ui.page_jobs import PageJobs

PERIOD: Final = 0.5
"""Seconds between two looks at a job, while somebody looks at its page."""
MAX_STREAMS: Final = 24
MAX_CONNECTIONS: Final = 64
"""So many are served at a time, with or without the token; others are closed at once."""
MAX_BODY: Final = 4096
PATIENCE: Final = 10.0
"""Seconds that a browser may take to say all that it wants, or to take what it gets."""
LAST_WORDS: Final = 2.0
"""Seconds to get the last state out when the server is closed."""
SCRIPTS: Final = ("elements.js", "panels.js", "page.js")
STATIC: Final = {
    "": ("page.html", "text/html; charset=utf-8"),
    **{name: (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked for by the user
"""Hosts that stand for all addresses of this machine, and where they are found here."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageServer:
    """Listens once it is made, on this machine alone unless ``host`` says otherwise.

    Port 0 is a free one. With ``read_only`` the page has no buttons, and orders are refused.
    All methods may be called from any thread.
    """

    def __init__(
        self, jobs: PageJobs, port: int = 0, host: str = "127.0.0.1", *, read_only: bool = False
    ) -> None:
        self.host = host
        self.read_only = read_only
        self.jobs = jobs
        self.token = secrets.token_urlsafe(18)
        self._is_closing = threading.Event()
        self._streams: set[threading.Thread] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("_Server", (_Server,), {"address_family": family})
        try:
            self._server = kind((host, port), partial(_Handler, self))
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"cannot serve a page at port {port} of {host}: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for a "
                f"free one"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="jetlet-page", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page, which is the secret of whoever started it."""
        host = EVERYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{self.token}/"

    def knows_host(self, header: str | None) -> bool:
        """True if a request for this host is meant for us.

        Its port is the browser's affair: it is another one where ours is forwarded.
        """
        if header is None:
            return False
        try:
            parts = urlsplit(f"//{header}")
            name, _ = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None:
            return False
        if name in {"localhost", "127.0.0.1", "::1", self.host.lower()}:
            return True
        if self.host in EVERYWHERE:
            return name == socket.gethostname().lower() or _is_address(name)
        return False

    def state(self, job_id: str | None) -> dict[str, Any]:
        """What the page gets: all jobs, and all of the one that it shows."""
        jobs = list(self.jobs.summaries())
        if job_id is None and jobs:
            job_id = jobs[0]["id"]
        shown = None if job_id is None else self.jobs.state(job_id)
        if shown is not None and self.read_only:
            shown = {**shown, "can": []}
        return {"jobs": jobs, "job": shown}

    def wait(self) -> None:
        """Serve until it is closed, or the calling thread is interrupted."""
        while not self._is_closing.wait(3600):
            pass

    def close(self) -> None:
        """Send the last state to those who look, and serve no more; idempotent."""
        self._is_closing.set()
        for stream in list(self._streams):
            stream.join(LAST_WORDS)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noreferrer">the page of the jobs</a>'

    def __repr__(self) -> str:
        return f"<PageServer {self.url}>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, *args: Any) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the process may have no more threads
            self._room.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is nobody's concern."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = PATIENCE
    server_version = "jetlet"
    sys_version = ""

    def __init__(self, page: PageServer, *args: Any) -> None:
        self._page = page
        super().__init__(*args)

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        place = self._place()
        if place is None:
            return
        path, query = place
        if path in STATIC:
            name, kind = STATIC[path]
            self._answer(HTTPStatus.OK, static(name).encode(), kind)
        elif path == "state":
            self._json(HTTPStatus.OK, self._page.state(query or None))
        elif path == "events":
            self._stream(query or None)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        place = self._place(changes=True)
        if place is None:
            return
        path, job_id = place
        if path != "order" or not job_id:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        if self._page.read_only:
            self._json(HTTPStatus.FORBIDDEN, {"error": "this page is for looking only"})
            return
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 < size <= MAX_BODY:
                raise ValueError(size)
            order = json.loads(self.rfile.read(size))
            command, name = str(order["command"]), order.get("name")
            if not isinstance(name, str | None):
                raise TypeError(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        try:
            self._page.jobs.order(job_id, command, name)
        except (JetletError, ValueError) as error:
            self._json(HTTPStatus.CONFLICT, {"error": str(error)})
        except Exception as error:
            self._json(HTTPStatus.CONFLICT, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._json(HTTPStatus.OK, {"error": None})

    def _place(self, *, changes: bool = False) -> tuple[str, str] | None:
        """Path behind the token, and query; answered already if the request is none for us."""
        host = self.headers.get("Host")
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        _, _, rest = parts.path.partition("/")
        token, slash, path = rest.partition("/")
        origin = self.headers.get("Origin")
        is_ours = self._page.knows_host(host)
        if is_ours and (changes or origin is not None):
            is_ours = origin == f"http://{host}"
        known = hmac.compare_digest(token.encode(), self._page.token.encode())
        if not (is_ours and known and slash):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return path, parts.query

    def _stream(self, job_id: str | None) -> None:
        page = self._page
        if len(page._streams) >= MAX_STREAMS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        thread = threading.current_thread()
        page._streams.add(thread)
        try:
            self._head(HTTPStatus.OK, "text/event-stream")
            is_last = False
            while not is_last:
                is_last = page._is_closing.is_set()
                self.wfile.write(b"data: " + dumped(page.state(job_id)) + b"\n\n")
                self.wfile.flush()
                if not is_last:
                    page._is_closing.wait(PERIOD)
            self.wfile.write(b"event: over\ndata: {}\n\n")
        except OSError:
            return  # nobody looks any more
        finally:
            page._streams.discard(thread)

    def _json(self, status: HTTPStatus, what: Mapping[str, Any]) -> None:
        self._answer(status, dumped(what), "application/json")

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer(status, b"", "text/plain")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, size: int | None = None) -> None:
        self.connection.settimeout(PATIENCE)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the job."""


class _Request(io.RawIOBase):
    """What a browser sends, all of which has to come in time, and not only each piece of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def static(name: str) -> str:
    """A file of the page."""
    return resources.files("jetlet.ui").joinpath("static", name).read_text(encoding="utf-8")


def dumped(what: Mapping[str, Any]) -> bytes:
    """As JSON in one line; what it cannot hold becomes text."""
    try:
        return json.dumps(what, default=str, allow_nan=False).encode()
    except ValueError:  # a gauge that is not a number, say
        return json.dumps(_finite(what), default=str, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
