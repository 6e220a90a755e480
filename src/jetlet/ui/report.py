"""What stays of a job: its page as one file, which opens without a server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from jetlet.errors import JetletError
from jetlet.jobs.job import Job
from jetlet.ui.job_feed import JobFeed, Logs
from jetlet.ui.page_server import SCRIPTS, dumped, static
from jetlet.ui.where import where_it_ran

POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)


def write_report(job: Job, path: str | os.PathLike[str], logs: Logs = tuple) -> None:
    """Write the report of a job; raises :class:`~jetlet.errors.JetletError` if that cannot be."""
    text = report(job, logs)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise JetletError(f"cannot write the report to {path}: {error.strerror}") from error


def report(job: Job, logs: Logs = tuple) -> str:
    """The page with its style, its script, and the state of the job in it."""
    state = {
        "jobs": [],
        "job": {**JobFeed(job, logs).state(final=True), "can": []},
        "versions": where_it_ran(),
    }
    # No text of the job can end the element that it is in.
    data = dumped(state).decode().replace("<", "\\u003c")
    pieces = {
        '<link rel="stylesheet" href="page.css">': f"<style>{static('page.css')}</style>",
        '<meta charset="utf-8">': (
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        ),
        "<footer": f'<script type="application/json" id="report">{data}</script><footer',
    }
    for name in SCRIPTS:
        pieces[f'<script src="{name}" defer></script>'] = f"<script>{static(name)}</script>"
    pattern = "|".join(map(re.escape, pieces))
    # In one go: what was put in is not looked at again.
    return re.sub(pattern, lambda match: pieces[match[0]], static("page.html"))
