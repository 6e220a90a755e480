from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from jetlet import running
from jetlet.cli.failures import Refused
from jetlet.cli.loading import load
from jetlet.core import DAG
from jetlet.pipeline.pipeline import Pipeline

IMPORTS = "from jetlet import Pipeline, sinks, sources\n"
ONE = IMPORTS + "numbers = Pipeline('one')\n"


def refusal(target: str) -> str:
    with pytest.raises(Refused) as caught:
        load(target)
    assert caught.value.exit_code == 2
    return caught.value.message


class TestChoosing:
    def test_the_only_pipeline_needs_no_name(self, project):
        project.write("job_one.py", ONE)
        assert load("job_one.py").what.name == "one"

    @pytest.mark.parametrize("name", ["p", "pipeline"])
    def test_among_several_the_conventional_name_is_meant(self, project, name):
        project.write("job_conv.py", ONE + f"{name} = Pipeline('meant')\nother = Pipeline('x')\n")
        assert load("job_conv.py").what.name == "meant"

    def test_several_without_a_conventional_name_are_listed(self, project):
        project.write("job_many.py", ONE + "words = Pipeline('two')\n")
        assert refusal("job_many.py") == (
            "job_many.py has numbers and words: choose one, for example job_many.py:numbers"
        )
        assert load("job_many.py:words").what.name == "two"

    def test_two_names_of_one_pipeline_are_one(self, project):
        project.write("job_alias.py", ONE + "p = numbers\n")
        assert load("job_alias.py").what.name == "one"

    def test_a_function_that_returns_a_pipeline_is_called(self, project):
        project.write("job_fn.py", IMPORTS + "def build(n=1): return Pipeline(f'built-{n}')\n")
        assert load("job_fn.py:build").what.name == "built-1"

    def test_a_function_that_says_so_is_found_without_its_name(self, project):
        project.write(
            "job_says.py",
            IMPORTS + "def helper(): ...\ndef build() -> Pipeline: return Pipeline('built')\n",
        )
        assert load("job_says.py").what.name == "built"

    def test_a_dag_will_do(self, project):
        project.write("job_dag.py", "from jetlet.core import DAG\ngraph = DAG('core')\n")
        assert isinstance(load("job_dag.py").what, DAG)

    def test_a_file_without_pipeline_is_told_what_to_write(self, project):
        project.write("job_none.py", "x = 1\n")
        assert "p = Pipeline(...)" in refusal("job_none.py")
        assert "job_none.py:NAME" in refusal("job_none.py")

    def test_a_name_that_is_not_there_gets_a_suggestion(self, project):
        project.write("job_typo.py", ONE)
        assert "did you mean job_typo.py:numbers?" in refusal("job_typo.py:nubmers")
        assert "it has numbers" in refusal("job_typo.py:xyz")

    def test_a_name_of_something_else_is_refused(self, project):
        project.write("job_else.py", ONE + "limit = 3\n")
        assert "job_else.py:limit is a int" in refusal("job_else.py:limit")

    def test_a_function_that_needs_arguments_is_refused(self, project):
        project.write("job_args.py", "def build(path, *, n): ...\n")
        assert "needs arguments (path, n): write -P path=... -P n=..." in refusal(
            "job_args.py:build"
        )

    def test_a_function_that_returns_nothing_is_refused(self, project):
        project.write("job_void.py", "def build(): ...\n")
        assert "returned None" in refusal("job_void.py:build")
        assert "return p" in refusal("job_void.py:build")

    @pytest.mark.parametrize("target", ["job.py:", "job.py:a b", ":p", "job.py:a-b"])
    def test_a_target_of_another_form_is_refused(self, project, target):
        assert "FILE:NAME" in refusal(target)


class TestImporting:
    def test_the_main_part_does_not_run(self, project):
        project.write("job_main.py", ONE + "if __name__ == '__main__': raise SystemExit(7)\n")
        assert load("job_main.py").what.name == "one"

    def test_modules_beside_the_file_can_be_imported(self, project):
        project.write("jobs/beside_it.py", "NAME = 'beside'\n")
        project.write(
            "jobs/job_imports.py", IMPORTS + "import beside_it\np = Pipeline(beside_it.NAME)\n"
        )
        loaded = load("jobs/job_imports.py")
        assert loaded.what.name == "beside"
        assert sys.path[0] == str(loaded.home) == str(project.directory / "jobs")

    def test_its_functions_can_be_found_by_another_process(self, project):
        project.write("job_pickle.py", ONE + "def double(x): return 2 * x\n")
        load("job_pickle.py")
        data = pickle.dumps(sys.modules["job_pickle"].double)
        code = f"import pickle; print(pickle.loads({data!r})(21))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=project.directory,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert done.stdout == "42\n"

    def test_a_hyphen_in_the_name_is_no_obstacle(self, project):
        project.write("word-count.py", ONE + "def double(x): return 2 * x\n")
        load("word-count.py")
        double = sys.modules["word-count"].double
        assert pickle.loads(pickle.dumps(double)) is double

    def test_a_module_is_imported_by_its_dotted_name(self, project):
        project.write("package_of_jobs/__init__.py", "")
        project.write("package_of_jobs/names.py", "NAME = 'relative'\n")
        project.write(
            "package_of_jobs/daily.py", IMPORTS + "from .names import NAME\np = Pipeline(NAME)\n"
        )
        assert load("package_of_jobs.daily:p").what.name == "relative"

    def test_a_relative_import_in_a_file_gets_the_remedy(self, project):
        project.write("package_of_rel/__init__.py", "")
        project.write("package_of_rel/job_rel.py", "from . import names\n")
        assert "jetlet run package.job" in refusal("package_of_rel/job_rel.py")

    def test_a_file_that_is_not_there_gets_a_suggestion(self, project):
        project.write("word_count.py", ONE)
        assert refusal("word_cuont.py") == (
            "there is no file word_cuont.py: did you mean word_count.py?"
        )
        assert refusal("nothing/like.py") == "there is no file nothing/like.py"

    def test_what_is_no_python_file_is_refused(self, project):
        project.write("notes.txt", "")
        (project.directory / "folder").mkdir()
        assert "must end in .py" in refusal("notes.txt")
        assert "is a directory" in refusal("folder")
        assert "no file and no module" in refusal("no_such_module_at_all")
        assert "no file and no module" in refusal("no_such_package.at_all")
        assert "no file and no module" in refusal("pickle.nothing")
        assert "no file and no module" in refusal("not a module")

    @pytest.mark.parametrize("name", ["csv", "click", "turtle"])
    def test_a_file_that_would_hide_another_module_is_refused(self, project, name):
        project.write(f"{name}.py", ONE)
        assert f"my_{name}.py" in refusal(f"{name}.py")

    def test_a_file_that_import_would_not_find_is_refused(self, project):
        project.write("hidden_job/__init__.py", "")
        project.write("hidden_job.py", ONE)
        assert "finds" in refusal("hidden_job.py") and "rename" in refusal("hidden_job.py")
        project.write("a.b.py", ONE)
        assert "a_b.py" in refusal("a.b.py")

    def test_an_error_in_the_file_is_told_with_its_place(self, project):
        project.write("job_name_error.py", "x = 1\ny = z\n")
        assert refusal("job_name_error.py") == (
            "cannot load job_name_error.py: NameError: name 'z' is not defined "
            "(job_name_error.py, line 2)"
        )
        assert "job_name_error" not in sys.modules
        project.write("job_syntax.py", "x = 1\ny = (\n")
        assert "job_syntax.py, line 2" in refusal("job_syntax.py")
        assert "SyntaxError: '(' was never closed" in refusal("job_syntax.py")

    def test_an_error_in_a_function_is_told_with_its_place(self, project):
        project.write("job_raises.py", "def build():\n    return 1 / 0\n")
        assert "job_raises.py, line 2" in refusal("job_raises.py:build")

    def test_a_missing_package_gets_the_remedy(self, project):
        project.write("job_missing.py", "import no_such_package\n")
        assert "install it" in refusal("job_missing.py")

    def test_a_mistake_in_the_pipeline_keeps_its_message(self, project):
        project.write("job_mistake.py", IMPORTS + "p = Pipeline('x')\np.read_from([1])\n")
        message = refusal("job_mistake.py")
        assert message.startswith("read_from takes a source")
        assert message.endswith("(job_mistake.py, line 3)")

    def test_a_file_that_runs_its_pipeline_is_refused(self, project):
        project.write(
            "job_runs.py",
            IMPORTS + "p = Pipeline('x')\n"
            "p.read_from(sources.items([1])).write_to(sinks.noop())\np.run(on='embedded')\n",
        )
        assert 'if __name__ == "__main__"' in refusal("job_runs.py")
        assert running.run.__name__ == "run"

    def test_a_file_that_exits_is_refused(self, project):
        project.write("job_exits.py", "import sys\nsys.exit(0)\n")
        message = refusal("job_exits.py")
        assert "job_exits.py, line 2" in message and 'if __name__ == "__main__"' in message

    def test_a_file_is_imported_once(self, project):
        project.write("job_once.py", ONE)
        first = load("job_once.py").what
        assert isinstance(first, Pipeline)
        assert load("./job_once.py").what is first


def test_a_file_that_submits_its_job_is_not_run_twice(project):
    project.write(
        "submits.py",
        """
        from jetlet import EmbeddedEngine, Pipeline, sinks, sources
        p = Pipeline("p")
        p.read_from(sources.items([1])).write_to(sinks.logger())
        with EmbeddedEngine() as engine:
            engine.submit(p).join()
        """,
    )
    refused = project.jetlet("run", "submits.py", "--on", "embedded")
    assert refused.exit_code == 2
    assert "'p' is submitted while its file is loaded: put submit() under" in refused.stderr
    assert refused.stdout == ""
