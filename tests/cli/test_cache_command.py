"""``jetlet cache`` shows what is kept, and clears it."""

from __future__ import annotations

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jetlet"


def test_it_is_shown_and_cleared(project, cache):
    (cache / "archives").mkdir(parents=True, mode=0o700)
    (cache / "archives" / "a.jsa").write_bytes(b"x" * 2500)
    (cache / "note").write_bytes(b"x" * 500)

    shown = project.jetlet("cache").output
    cleared = project.jetlet("cache", "clear").output

    assert shown.splitlines()[0] == f"{cache}: 3.0 kB"
    assert "archives      2.5 kB  Java classes of Spark" in shown
    assert cleared == f"{cache}: 3.0 kB freed\n"
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("words", [["cache"], ["cache", "clear"]])
def test_there_may_be_none(project, cache, words):
    assert project.jetlet(*words).output == "there is no cache\n"
    assert not cache.exists()
