# SPDX-License-Identifier: Apache-2.0
"""Finding a Java, and where Delta's jars come from; no JVM is started but for ``-version``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.lake import jvm
from penstock.lake.cache import new_folder
from penstock.lake.jars import delta_jars


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock"


def fake_java(home: Path, version: str) -> Path:
    """A ``bin/java`` that reports a version and prints the arguments it gets."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\necho "$@"\n'
    )
    java.chmod(0o755)
    return java


def test_java_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is taken before PATH, and the flag that some images refuse is dropped."""
    fake_java(tmp_path / "it's java", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's java"))
    java = jvm.java_home() / "bin" / "java"
    run = subprocess.run(
        [java, "a b", "--add-modules=jdk.incubator.vector", "c"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "a b c\n"


def test_wrapper_is_not_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process, whose JAVA_HOME is the wrapper, gets the same wrapper."""
    fake_java(tmp_path / "java", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    first = jvm.java_home()
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert jvm.java_home() == first


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 1)])
def test_major_version(tmp_path: Path, version: str, major: int) -> None:
    """The major version is the first number that Java reports."""
    assert jvm.java_major(fake_java(tmp_path, version)) == major


def test_no_java_is_a_named_error(tmp_path: Path) -> None:
    """With only a Java that Spark does not run on, the error says what to install."""
    fake_java(tmp_path, "11.0.1")
    with pytest.raises(ConfigurationError, match="no Java 17 or 21") as error:
        jvm.find_java([tmp_path])
    assert error.value.hint is not None and "jdk" not in error.value.message


def test_jars_of_the_setting(tmp_path: Path) -> None:
    """A folder with Delta's jars is used as it is; one without them is refused."""
    for name in ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"):
        (tmp_path / name).touch()
    settings = Settings(home=tmp_path / "home", jars=tmp_path)
    assert [jar.name for jar in delta_jars(settings)] == [
        "delta-spark_4.2_2.13-4.4.0.jar",
        "delta-storage-4.4.0.jar",
    ]
    (tmp_path / "delta-storage-4.4.0.jar").unlink()
    with pytest.raises(ConfigurationError, match="has no Delta jars"):
        delta_jars(settings)


def test_a_cached_folder_is_complete_or_absent(cache: Path) -> None:
    """A folder whose filling fails does not appear; the first complete one stays."""
    final = cache / "jars" / "x"
    with pytest.raises(OSError, match="disk full"), new_folder(final) as folder:
        (folder / "half").touch()
        raise OSError("disk full")
    assert not final.exists()
    for name in ("first", "second"):
        with new_folder(final) as folder:
            (folder / name).touch()
    assert [path.name for path in final.parent.rglob("*")] == ["x", "first"]
