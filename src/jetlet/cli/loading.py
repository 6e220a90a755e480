"""Finding the pipeline that ``FILE[:NAME]`` names.

:func:`load` imports the file under its own name, as ``import`` would, so that functions defined in
it can be found by other processes too, and so that the part below ``if __name__ == "__main__":``
does not run. The file's directory comes first on ``sys.path``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jetlet import running
from jetlet.cli.arguments import bind
from jetlet.cli.failures import Refused, describe, place_of
from jetlet.core.dag import DAG
from jetlet.errors import PlanningError
from jetlet.jobs.engine import EngineJobs
from jetlet.jobs.job import Job
from jetlet.pipeline.pipeline import Pipeline
from jetlet.tasks.application import TaskApplication

Runnable = Pipeline | DAG | TaskApplication
"""What a file can hold for an engine to run."""
CONVENTIONAL_NAMES = ("p", "pipeline", "app")
"""Looked for where a file has several pipelines and none is named."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found, and where the user's code is."""

    what: Runnable
    home: Path
    """The directory that was put on ``sys.path``."""


def load(target: str, pairs: Sequence[str] = (), rest: Sequence[str] = ()) -> Loaded:
    """The pipeline, application or DAG that ``FILE[:NAME]`` names; raises :class:`Refused`.

    ``pairs`` and ``rest`` are arguments of the function that makes it, as
    :mod:`~jetlet.cli.arguments` takes them. ``rest`` is in ``sys.argv`` from now on.
    """
    file, name = _split(target)
    sys.argv = [file, *rest]
    path = Path(file)
    if path.suffix == ".py" or os.sep in file or path.exists():
        home = Path(os.path.abspath(path)).parent  # noqa: PTH100 - resolve() follows links
        module = _import_file(path, home)
    else:
        home = Path.cwd()
        module = _import_module(file, home)
    return Loaded(_choose(module, name, file, home, pairs, rest), home)


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    if not colon or Path(target).exists():
        return target, None
    if not file or not name.isidentifier():
        raise Refused(
            f"{target!r}: write FILE or FILE:NAME, where NAME is a pipeline in the file or a "
            f"function that returns one, such as word_count.py:p"
        )
    return file, name


# --- Importing ------------------------------------------------------------------------------


def _import_file(path: Path, home: Path) -> ModuleType:
    _check_file(path)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and _is_at(loaded.__spec__, path):
        return loaded
    if name in sys.stdlib_module_names or loaded is not None:
        raise Refused(
            f"{path} has the name of another module, {name!r}, and would hide it: "
            f"rename the file, for example to my_{name}.py"
        )
    if "." in name:
        raise Refused(
            f"{path}: a module's name cannot have a dot: "
            f"rename the file to {name.replace('.', '_')}.py"
        )
    _put_first(home)
    # Other processes will import it by its name, and must find this file.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or not _is_at(spec, path):
        raise Refused(
            f"{path}: 'import {name}' finds {spec and spec.origin} instead: rename one of them"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _loading(str(path), home):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return module


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise Refused(f"{path} is a directory: name a Python file in it, such as {path}/job.py")
    if not path.exists():
        others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, others, n=1)
        hint = f": did you mean {path.parent / close[0]}?" if close else ""
        raise Refused(f"there is no file {path}{hint}")
    if path.suffix != ".py":
        raise Refused(f"{path} is not a Python file: its name must end in .py")


def _is_at(spec: Any, path: Path) -> bool:
    origin = getattr(spec, "origin", None)
    return origin is not None and Path(origin).exists() and path.samefile(origin)


def _import_module(name: str, home: Path) -> ModuleType:
    _put_first(home)
    try:
        found = all(part.isidentifier() for part in name.split(".")) and _has_module(name)
    except Exception as error:
        # A parent package is imported while its modules are looked for.
        raise _load_error(name, error, home) from error
    if not found:
        raise Refused(
            f"there is no file and no module named {name!r}: write the path of a Python file, "
            f"such as {name.rpartition('.')[2] or 'job'}.py, or a module that can be imported "
            f"from {home}"
        )
    with _loading(name, home):
        return importlib.import_module(name)


def _has_module(name: str) -> bool:
    parent = name.rpartition(".")[0]
    if parent and not _has_module(parent):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name in (name, parent):  # the parent is a plain module, with none in it
            return False
        raise


def _put_first(directory: Path) -> None:
    text = str(directory)
    if sys.path[:1] != [text]:
        sys.path.insert(0, text)
    importlib.invalidate_caches()


@contextmanager
def _loading(what: str, home: Path) -> Iterator[None]:
    """Turn what goes wrong while a module is imported into a message with its place."""
    run, start = running.run, EngineJobs.start
    # A file that runs its pipeline when it is imported would run it twice here, and again in
    # every process that imports it to find its functions.
    running.run = _refuse_to_run
    EngineJobs.start = _refuse_to_start  # type: ignore[method-assign]
    try:
        yield
    except SystemExit as error:
        raise Refused(
            f"{what} exits while it is loaded ({place_of(error, home)}): put what is to happen "
            f'only in a script under if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise _load_error(what, error, home) from error
    finally:
        running.run = run
        EngineJobs.start = start  # type: ignore[method-assign]


def _refuse_to_start(self: EngineJobs, job: Job, parallelism: int) -> Job:
    raise PlanningError(
        f"{job.name!r} is submitted while its file is loaded: put submit() under "
        f'if __name__ == "__main__":'
    )


def _refuse_to_run(pipeline: Pipeline | TaskApplication, *args: Any, **options: Any) -> Job:
    raise PlanningError(
        f"{pipeline.name!r} is run while its file is loaded: put run() under "
        f'if __name__ == "__main__":'
    )


def _load_error(what: str, error: Exception, home: Path) -> Refused:
    place = place_of(error, home)
    where = f" ({place})" if place else ""
    if isinstance(error, PlanningError):
        return Refused(f"{error}{where}")
    hint = ""
    if isinstance(error, ImportError) and "relative import" in str(error):
        hint = ": name it as a module of its package, such as jetlet run package.job"
    elif isinstance(error, ModuleNotFoundError):
        hint = ": install it, or run from the environment that has it"
    return Refused(f"cannot load {what}: {describe(error)}{where}{hint}")


# --- Choosing -------------------------------------------------------------------------------


def _choose(
    module: ModuleType,
    name: str | None,
    file: str,
    home: Path,
    pairs: Sequence[str],
    rest: Sequence[str],
) -> Runnable:
    if name is None:
        name = _only_name(module, file)
    elif name not in vars(module):
        close = difflib.get_close_matches(name, vars(module), n=1)
        known = f"it has {_listed(_candidates(module))}" if _candidates(module) else ""
        hint = f"did you mean {file}:{close[0]}?" if close else known
        raise Refused(f"{file} has no {name!r}{hint and ': ' + hint}")
    found = vars(module)[name]
    if isinstance(found, Runnable):
        if pairs:
            raise Refused(
                f"-P {pairs[0]}: {file}:{name} is a {type(found).__name__}, which takes no "
                f"arguments: name a function that returns one"
            )
        return found
    if not callable(found):
        raise Refused(
            f"{file}:{name} is a {type(found).__name__}: name a Pipeline, a DAG, or a function "
            f"that returns one"
        )
    return _call(found, f"{file}:{name}", home, pairs, rest)


def _call(
    function: Any, what: str, home: Path, pairs: Sequence[str], rest: Sequence[str]
) -> Runnable:
    arguments = bind(function, what, pairs, rest)
    with _loading(what, home):
        found = function(**arguments)
    if not isinstance(found, Runnable):
        raise Refused(
            f"{what} returned {found!r:.100}: it must return a Pipeline or a DAG; "
            f"end it with 'return p'"
        )
    return found


def _only_name(module: ModuleType, file: str) -> str:
    """The name of the one thing in the module that can be meant."""
    names = _candidates(module)
    if not names:
        raise Refused(
            f"{file} has no pipeline: make one at its top level, p = Pipeline(...), or name a "
            f"function that returns one, {file}:NAME"
        )
    if len(names) == 1:
        return names[0]
    for name in CONVENTIONAL_NAMES:
        if name in names:
            return name
    raise Refused(f"{file} has {_listed(names)}: choose one, for example {file}:{names[0]}")


def _candidates(module: ModuleType) -> list[str]:
    """The pipelines at the module's top level, else applications, DAGs, functions that say so."""
    for kind in (Pipeline, TaskApplication, DAG):
        seen: dict[int, str] = {}
        for name, value in vars(module).items():
            if isinstance(value, kind):
                # Of two names for one pipeline, the conventional one.
                if id(value) not in seen or name in CONVENTIONAL_NAMES:
                    seen[id(value)] = name
        if seen:
            return list(seen.values())
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and _returns_pipeline(value)
    ]


def _returns_pipeline(function: Any) -> bool:
    try:
        result = function.__annotations__.get("return")
    except NameError:  # an annotation that cannot be resolved at run time
        return False
    text = result if isinstance(result, str) else getattr(result, "__name__", "")
    return text.rpartition(".")[2] in ("Pipeline", "TaskApplication", "DAG")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
