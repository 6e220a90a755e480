from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jetlet import __version__

pytestmark = pytest.mark.process

JOBS = """
    import itertools
    import logging
    import threading

    from jetlet import Pipeline, agg, sinks, sources, whole_item, windows
    from jetlet.pipeline.sink import ClientSink

    words = Pipeline("word-count")
    (words.read_from(sources.items(["a b", "b"]))
       .flat_map(str.split)
       .grouping_key(whole_item)
       .aggregate(agg.counting())
       .write_to(sinks.logger()))

    def to_int(text):
        return int(text)

    bad = Pipeline("bad")
    bad.read_from(sources.items(["1", "x"])).map(to_int).write_to(sinks.logger())

    lenient = Pipeline("lenient")
    (lenient.read_from(sources.items(["1", "x", "3"])).map(to_int, on_error="skip")
       .write_to(sinks.logger()))

    no_sink = Pipeline("no-sink")
    no_sink.read_from(sources.items([1])).map(str)

    files = Pipeline("files")
    files.read_from(sources.text("no-such-file.txt")).write_to(sinks.logger())

    def broken_splits(target):
        return 1 / 0

    no_splits = Pipeline("no-splits")
    no_splits.read_from(sources.batch("b", lambda s: [s], broken_splits)).write_to(sinks.noop())

    endless = Pipeline("endless")
    (endless.read_from(sources.batch("numbers", lambda split: itertools.count()))
       .filter(lambda n: n % 100_000 == 0)
       .write_to(sinks.logger("n = ")))

    def hang(split):
        print("hanging", flush=True)
        threading.Event().wait()
        yield 1

    hanging = Pipeline("hanging")
    hanging.read_from(sources.batch("stuck", hang, blocking=True)).write_to(sinks.noop())

    class StuckSink(ClientSink):
        name = "stuck"

        def receive(self, batch):
            print("receiving", flush=True)

        def finish(self, error):
            threading.Event().wait()

    stubborn = Pipeline("stubborn")
    (stubborn.read_from(sources.batch("numbers", lambda split: itertools.count()))
       .write_to(StuckSink()))

    def number(i):
        if i % 1000 == 0:
            logging.getLogger("numbers").warning("log %d", i)
        return "%05d %s" % (i, "x" * 70)

    lines = Pipeline("lines")
    (lines.read_from(sources.batch("numbers", lambda split: range(30_000)))
       .map(number).filter(lambda line: line[2:5] == "000").write_to(sinks.logger()))

    stream = Pipeline("stream")
    (stream.read_from(sources.item_stream(1000)).with_native_timestamps(0)
       .window(windows.tumbling(50)).aggregate(agg.counting(), name="count")
       .write_to(sinks.logger()))
"""
FILE = "jobs_to_run.py"


@pytest.fixture
def jobs(project):
    project.write(FILE, JOBS)
    return project


def run(project, name, *args):
    # Reports of slow calls depend on how busy the machine is.
    return project.jetlet("run", f"{FILE}:{name}", "--on", "embedded", "--log-level=error", *args)


class TestOutcomes:
    def test_a_job_that_completes(self, jobs):
        result = run(jobs, "words")
        assert result.exit_code == 0
        assert sorted(result.stdout.splitlines()) == ["('a', 1)", "('b', 2)"]
        assert re.fullmatch(
            r"word-count completed in [\d.]+ s: 2 items read, 2 written\n", result.stderr
        )

    def test_quiet_leaves_only_the_output(self, jobs):
        result = run(jobs, "words", "--quiet")
        assert result.exit_code == 0 and result.stderr == ""
        assert len(result.stdout.splitlines()) == 2

    def test_skipped_records_are_counted(self, jobs):
        result = run(jobs, "lenient")
        assert result.stdout == "1\n3\n"
        assert "3 items read, 2 written, 1 skipped" in result.stderr

    def test_a_job_that_fails(self, jobs):
        result = run(jobs, "bad")
        assert result.exit_code == 1
        lines = result.stderr.splitlines()
        assert lines[0].startswith("job 'bad' failed in vertex 'map' on item 'x': ValueError: ")
        assert lines[1] == "Traceback (most recent call last):"
        assert re.search(rf'{FILE}", line \d+, in to_int$', lines[2])
        assert lines[-2] == "ValueError: invalid literal for int() with base 10: 'x'"
        assert lines[-1].startswith(f"(jetlet {__version__}, python {platform.python_version()}")
        assert lines[-1].endswith("; --traceback shows all of the traceback)")
        assert "fused" not in result.stderr

    def test_a_whole_traceback_on_request(self, jobs):
        result = run(jobs, "bad", "--traceback")
        assert result.exit_code == 1
        assert "fused.py" in result.stderr and "in to_int" in result.stderr
        assert result.stderr.splitlines()[-1].startswith(f"(jetlet {__version__}, python ")

    def test_the_error_is_told_once(self, jobs):
        process = jobs.start("run", f"{FILE}:bad", "--on", "embedded")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.count("failed in vertex 'map'") == 1
        assert err.count("Traceback") == 1

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_sink", "stage 'map' of pipeline 'no-sink' leads nowhere"),
            ("files", "no-such-file.txt"),
            ("missing", "has no 'missing'"),
        ],
    )
    def test_a_mistake_is_a_message(self, jobs, name, message):
        result = run(jobs, name)
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ") and message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert "Traceback" in run(jobs, "no_sink", "--traceback").stderr

    def test_an_error_of_the_user_before_the_job_runs(self, jobs):
        result = run(jobs, "no_splits")
        assert result.exit_code == 1
        assert result.stderr.startswith("no-splits did not start: ZeroDivisionError: ")
        assert "in broken_splits" in result.stderr

    def test_logging_is_left_as_it_was(self, jobs):
        root = logging.getLogger()
        before = (root.level, list(root.handlers))
        run(jobs, "words")
        assert (root.level, list(root.handlers)) == before

    def test_signal_handlers_are_left_as_they_were(self, jobs):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        run(jobs, "words")
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    @pytest.mark.parametrize("on", ["spark", "embedded"])
    def test_a_misspelt_path_is_told_before_an_engine_starts(self, project, monkeypatch, on):
        monkeypatch.setitem(sys.modules, "jetlet.spark.engine", None)  # importing it would fail
        project.write(
            "misspelt.py",
            """
            from jetlet import Pipeline, sinks, sources
            p = Pipeline("misspelt")
            p.read_from(sources.text("no/such.txt")).write_to(sinks.noop())
            """,
        )
        result = project.jetlet("run", "misspelt.py", "--on", on)
        assert result.exit_code == 2
        assert "there is no 'no/such.txt'" in result.stderr


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "instead"),
        [
            (["--members", "2"], "--master 'local[2]'"),
            (["--on", "embedded", "--master", "local[2]"], "leave out --on embedded"),
            (["--on", "embedded", "--spark-conf", "a=b"], "--spark-conf is for the spark engine"),
            (["--spark-conf", "a"], "KEY=VALUE"),
            (["--on", "embedded", "--workers", "0"], "--workers"),
            (["--on", "embedded", "--streaming", "members"], "--streaming members is for Spark"),
            (["--streaming", "micro-batch"], "spark_stream"),
            (["--on", "flink"], "'spark', 'embedded'"),
            (["--paralelism", "2"], "--parallelism"),
        ],
    )
    def test_an_option_that_does_not_fit_is_refused(self, jobs, options, instead):
        result = jobs.jetlet("run", f"{FILE}:words", *options)
        assert result.exit_code == 2
        assert instead in result.stderr

    def test_options_reach_the_engine(self, jobs, monkeypatch):
        made = []

        class Engine:
            def __init__(self, on, **options):
                made.append((on, options))
                raise RuntimeError("no engine today")

        monkeypatch.setattr("jetlet.cli.run_command.make_engine", Engine)
        result = jobs.jetlet(
            *("run", f"{FILE}:words", "--master", "local[2]"),
            *("--spark-conf", "spark.a=b=c", "--spark-conf", "spark.d=1"),
        )
        assert made == [
            ("spark", {"master": "local[2]", "config": {"spark.a": "b=c", "spark.d": "1"}})
        ]
        assert result.exit_code == 1
        assert "cannot start the spark engine: RuntimeError: no engine today" in result.stderr

        jobs.jetlet("run", f"{FILE}:stream", "--members", "2")
        jobs.jetlet("run", f"{FILE}:words", "--streaming", "members", "--members", "2")
        assert made[1:] == [("spark", {"members": 2})] * 2

    def test_workers_and_parallelism(self, jobs):
        result = run(jobs, "words", "--workers", "2", "--parallelism", "3")
        assert result.exit_code == 0
        assert sorted(result.stdout.splitlines()) == ["('a', 1)", "('b', 2)"]


class TestStreams:
    def start(self, jobs, *options):
        return jobs.start(
            *("run", f"{FILE}:stream", "--on", "embedded", "--log-level=error", *options)
        )

    def test_progress_in_a_pipe_is_json_and_the_output_is_the_jobs_own(self, jobs):
        process = self.start(jobs, "--interval", "0.2")
        told = [json.loads(process.stderr.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert [each["state"] for each in told] == ["running"] * 3
        assert all(later["elapsed"] - each["elapsed"] > 0.1 for each, later in pairwise(told))
        source, *_, sink = told[-1]["vertices"]
        assert source["emitted"] >= sink["received"] > 0
        assert source["watermark_lag_ms"] is not None
        assert {"rate", "watermark_lag_ms", "late_events", "queue_fill"} <= sink.keys()
        *more, conclusion = err.splitlines()
        assert json.loads(more[-1])["state"] == "cancelled"
        assert re.match(r"stream cancelled after .* items read", conclusion)
        assert out and all(line.startswith("WindowResult(") for line in out.splitlines())

    def test_quiet_leaves_only_the_output(self, jobs):
        process = self.start(jobs, "--quiet", "--interval", "0.2")
        for _ in range(20):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert re.fullmatch(r"stream cancelled after .*\n", err)

    def test_metrics_are_served_while_the_job_runs(self, jobs):
        process = self.start(jobs, "--quiet", "--metrics-port", "0")
        told = process.stderr.readline()
        url = re.fullmatch(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", told)[1]
        assert process.stdout.readline()
        families = {}
        while "jetlet_job_running" not in families:  # an item may be faster
            with urllib.request.urlopen(url, timeout=60) as response:
                text = response.read().decode()
            families = {f.name: f for f in text_string_to_metric_families(text)}
        assert families["jetlet_job_running"].samples[0].labels["job_name"] == "stream"
        lag = families["jetlet_vertex_watermark_lag_seconds"]
        assert "count" in {sample.labels["vertex"] for sample in lag.samples}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=60)

    def test_busy_port_is_refused_before_anything_runs(self, jobs):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            result = run(jobs, "words", "--metrics-port", port)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert f"--metrics-port {port}: cannot serve metrics" in result.stderr

    @pytest.mark.parametrize("place", ["nowhere/report.html", f"{FILE}/report.html"])
    def test_report_that_cannot_be_written_is_refused_before_anything_runs(self, jobs, place):
        result = run(jobs, "words", "--report", place)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert f"cannot write the report to {place}: there is no directory" in result.stderr

    @pytest.mark.parametrize(
        "options", [["--ui"], ["--ui-port", "0"], ["--ui-host", "::1"], ["--ui-read-only"]]
    )
    def test_every_option_of_the_page_asks_for_it(self, jobs, options):
        result = run(jobs, "words", *options)
        host = "[::1]" if "::1" in options else "127.0.0.1"
        assert result.exit_code == 0
        assert f"page at http://{host}:" in result.stderr

    def test_table_on_a_terminal(self, jobs):
        written, code = in_terminal(
            *(jobs, "run", f"{FILE}:stream", "--on", "embedded"),
            stdout=subprocess.DEVNULL,
            until=lambda written: " ms " in written,
        )
        assert code == 130
        shown = [line for line in screen(written) if line]
        assert shown[1].split() == ["vertex", "in", "out", "rate", "lag", "late", "queue"]
        assert re.search(r"^count +[\d,]+ +[\d,]+ +[\d,]+/s +[\d,]+ ms +░", shown[4])


class TestHelp:
    @pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["plan", "-h"]])
    def test_help_has_an_example(self, project, args):
        result = project.jetlet(*args)
        assert result.exit_code == 0
        assert re.search(r"Examples:\n +jetlet (run|plan) word_count.py", result.stdout)

    def test_a_file_without_a_command_gets_the_command(self, project):
        result = project.jetlet("word_count.py:p")
        assert result.exit_code == 2
        assert "write main run word_count.py:p" in result.stderr

    @pytest.mark.parametrize(
        "command", [["-m", "jetlet"], ["-c", "import jetlet.cli as c; c.main()"]]
    )
    def test_version(self, command):
        done = subprocess.run(
            [sys.executable, *command, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"jetlet, version {__version__}\n"

    def test_the_version_needs_no_display(self):
        code = (
            "import sys, jetlet.cli as c\n"
            "try: c.main(['--version'])\n"
            "except SystemExit: print({'rich', 'pyspark'} & {*sys.modules})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout.splitlines()[-1] == b"set()"


class TestSignals:
    @pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_cancels_the_job(self, jobs, signum, code):
        process = jobs.start("run", f"{FILE}:endless", "--on", "embedded", "--log-level=error")
        assert process.stdout.readline() == "n = 0\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert re.fullmatch(r"endless cancelled after .* items read, [\d,]+ written\n", err)
        # Whole lines to the end, and nothing else.
        assert out.endswith("\n") and all(line.startswith("n = ") for line in out.splitlines())

    @pytest.mark.parametrize("members", ["1", "2"])
    def test_a_function_that_waits_does_not_hold_up_the_end(self, jobs, members):
        process = jobs.start(
            *("run", f"{FILE}:hanging", "--on", "embedded", "--log-level=error"),
            *("--members", members),
        )
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert re.fullmatch(r"hanging cancelled after .*\n", err)

    def test_a_second_signal_ends_at_once(self, jobs):
        process = jobs.start("run", f"{FILE}:stubborn", "--on", "embedded", "--log-level=error")
        assert process.stdout.readline() == "receiving\n"
        process.send_signal(signal.SIGINT)
        # It says so when it has to wait for the user's code.
        assert "Ctrl-C again ends at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "ended at once\n"

    def test_a_signal_while_the_file_is_loaded(self, project):
        project.write(
            "slow_to_load.py", "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
        )
        process = project.start("run", "slow_to_load.py", "--on", "embedded")
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "cancelled before it ran\n"

    def test_a_reader_that_has_had_enough_ends_the_job(self, jobs):
        process = jobs.start("run", f"{FILE}:endless", "--on", "embedded", "--log-level=error")
        assert process.stdout.readline() == "n = 0\n"
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 141
        assert re.fullmatch(r"endless ended after .*: nobody reads its output any more\n", err)


def in_terminal(project, *args, columns=70, until=None, stdout=None):
    """Run on a terminal; returns what was written to it and the exit code.

    With ``until``, Ctrl-C is pressed when that is true of what was written.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        env.pop(name, None)
    process = project.start(
        *args, stdin=theirs, stdout=stdout or theirs, stderr=theirs, text=False, env=env
    )
    os.close(theirs)
    written, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            data = os.read(ours, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux says that the other end is closed
                raise
            break
        if not data:
            break
        written += data
        if until and until(written.decode(errors="replace")):
            process.send_signal(signal.SIGINT)
            until = None
    os.close(ours)
    return written.decode(), process.wait(timeout=60)


def screen(written: str, columns: int = 70) -> list[str]:
    """What is to be seen in the end, of the little that our displays use of a terminal."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row -= int(part[2:-1] or 1)
            elif part.endswith("K"):
                assert part == "\x1b[2K"
                lines[row] = ""
            else:
                assert part[-1] in "mhl", part
        else:
            while part:
                if column == columns:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                piece, part = part[: columns - column], part[columns - column :]
                lines[row] = (
                    lines[row].ljust(column)[:column] + piece + lines[row][column + len(piece) :]
                )
                column += len(piece)
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]


class TestTerminal:
    def test_a_table_stays_below_what_is_printed(self, jobs):
        written, code = in_terminal(jobs, "run", f"{FILE}:lines", "--on", "embedded")
        assert code == 0
        shown = screen(written)
        # Each line of the job and of the log is there once, whole, in order: none was drawn over,
        # and none was wrapped but by the terminal itself.
        text = "\n".join(shown)
        items = re.findall(r"^(\d{5}) (x{64})\n(x{6})$", text, re.MULTILINE)
        assert [int(number) for number, *_ in items] == [*range(0, 30_000, 1000)]
        logged = re.findall(r"^WARNING numbers: log (\d+)$", text, re.MULTILINE)
        assert [int(number) for number in logged] == [*range(0, 30_000, 1000)]
        *table, conclusion, after = shown[-7:]
        assert [line.split()[0] for line in table] == [
            *("lines", "vertex", "numbers", "fused(map,", "logger-sink")
        ]
        assert re.match(r"lines  completed  \d", table[0])
        assert re.match(r"lines completed in .*: 30,000 items read, 30 written$", conclusion)
        assert after == ""
        # The cursor is back.
        assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1

    def test_it_is_drawn_a_few_times_a_second(self, jobs):
        def times(written):
            found = re.findall(r"running  (\d+\.\d\d?) s", written)
            return sorted({float(each) for each in found})

        written, _ = in_terminal(
            *(jobs, "run", f"{FILE}:endless", "--on", "embedded"),
            until=lambda written: len(times(written)) >= 4,
        )
        drawn = times(written)
        assert all(later - earlier > 0.1 for earlier, later in pairwise(drawn))

    def test_output_that_is_redirected_has_nothing_else_in_it(self, jobs, tmp_path):
        with (tmp_path / "out.txt").open("w") as out:
            written, code = in_terminal(
                jobs, "run", f"{FILE}:words", "--on", "embedded", stdout=out
            )
        assert code == 0
        assert sorted((tmp_path / "out.txt").read_text().splitlines()) == ["('a', 1)", "('b', 2)"]
        assert "('a', 1)" not in written and "word-count" in written

    def test_ctrl_c_cancels_and_leaves_a_usable_terminal(self, jobs):
        written, code = in_terminal(
            *(jobs, "run", f"{FILE}:endless", "--on", "embedded"),
            until=lambda written: "running" in written,
        )
        assert code == 130
        shown = [line for line in screen(written) if line]
        assert shown[-1].startswith("endless cancelled after ")
        assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
