"""What is installed: pyproject.toml's list of packages against the folders, what a wheel holds, and
imports from places where a folder or a file has one of our names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jitgrad

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]


def packages_on_disk() -> list[str]:
    """The import name of every folder that holds Python files, at any depth."""
    packages = set()
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.parent.relative_to(ROOT / folder).parts
            packages |= {".".join((package, *parts[:n])) for n in range(len(parts) + 1)}
    return sorted(packages)


def folder_of(package: str) -> Path:
    root = max((name for name in FOLDERS if f"{package}.".startswith(f"{name}.")), key=len)
    inner = package.removeprefix(root).strip(".").split(".")
    return ROOT.joinpath(FOLDERS[root], *filter(None, inner))


def test_packages_are_listed() -> None:
    expected = packages_on_disk()
    if sorted(SETUPTOOLS["packages"]) != expected:
        lines = "\n".join(f'    "{package}",' for package in expected)
        pytest.fail(f"pyproject.toml, [tool.setuptools], should say\npackages = [\n{lines}\n]")


def test_packages_have_init() -> None:
    missing = [p for p in packages_on_disk() if not (folder_of(p) / "__init__.py").exists()]
    assert not missing, f"no __init__.py in {', '.join(missing)}"


def test_version() -> None:
    assert jitgrad.version.jitgrad == PROJECT["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    # From a copy: setuptools leaves build/ beside the sources, and would read it the next time.
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
    options = ["--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(source)]
    result = subprocess.run([*pip, *options], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package in packages_on_disk()
        for path in folder_of(package).glob("*.py*")
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    # One namespace: nothing else of ours lands in site-packages, tests included.
    assert packed == expected | {"jitgrad/py.typed"}


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    always = [line.removeprefix("Requires-Dist: ") for line in required if "extra ==" not in line]
    assert sorted(always) == sorted(PROJECT["project"]["dependencies"])
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in wheel.namelist())


IMPORT_ALL = """
import jitgrad, jitgrad.compiler.ir, jitgrad.runtime.dtypes
assert jitgrad.compiler.__name__ == "jitgrad.compiler"
print("imported")
"""


def imports_in(folder: Path) -> None:
    command = [sys.executable, "-c", IMPORT_ALL]  # -c puts the working directory first on sys.path
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.stdout == "imported\n", result.stderr


def test_import_from_repository_root() -> None:
    """There, jitgrad/ is a folder without compiler/ in it."""
    imports_in(ROOT)


@pytest.mark.parametrize("name", ["compiler", "runtime", "tests"])
def test_import_beside_files_of_the_same_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is the file of the user')\n")
    (tmp_path / "folder" / name).mkdir(parents=True)
    shutil.copy(tmp_path / f"{name}.py", tmp_path / "folder" / name / "__init__.py")
    imports_in(tmp_path)
    imports_in(tmp_path / "folder")
