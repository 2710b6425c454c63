"""The recipe for conda-forge is built and tested by rattler-build, with stand-ins for the packages of conda-forge.

The stand-ins have the names and versions that the recipe requires, and refer to what is installed here. So the test
needs no channel, but it does not show whether conda-forge has packages of these names.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from docs_tools.blocks import ROOT

rattler_build = pytest.importorskip("rattler_build")

RECIPE = ROOT / "conda" / "recipe.yaml"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{THIS}/site-packages"


def _python(folder: Path) -> None:
    """A virtual environment of this interpreter, in which all that is installed here can be imported."""
    (folder / "bin").mkdir(parents=True)
    (folder / SITE).mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    (folder / SITE / "stand-in.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("python", f"python{THIS}"):
        (folder / "bin" / name).symlink_to(Path(sys.base_prefix) / "bin" / f"python{THIS}")


def _setuptools(folder: Path) -> None:
    """Setuptools, with which the recipe makes the package; this environment may have an older one."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / SITE)]
    subprocess.run([*pip, "setuptools>=77"], check=True)


def _empty(folder: Path) -> None:
    """One file, because rattler-build makes no package without a file."""
    (folder / "share").mkdir(parents=True)
    (folder / "share" / folder.name).touch()


def _index(channel: Path) -> None:
    """Write the list of a channel's packages."""
    packages = {}
    for path in (channel / "noarch").glob("*.conda"):
        package, content = rattler_build.Package.from_file(path), path.read_bytes()
        packages[path.name] = {
            "name": package.name, "version": str(package.version), "build": package.build_string, "build_number": 0,
            "depends": [], "subdir": "noarch", "noarch": "generic", "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(), "md5": hashlib.md5(content).hexdigest(),
        }  # fmt: skip
    index = {"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": packages}
    (channel / "noarch" / "repodata.json").write_text(json.dumps(index))


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel with a stand-in for each package that the recipe requires, in the least version."""
    (rendered,) = rattler_build.Stage0Recipe.from_file(RECIPE).render()
    required = rendered.recipe.to_dict()["requirements"]
    least = {"python": sys.version.split()[0]}
    for name, _, bounds in (line.partition(" ") for line in (*required["host"], *required["run"])):
        version = re.search(r">=([\d.]+)", bounds)
        least.setdefault(name, version[1] if version else "1.0")
    channel = tmp_path / "channel"
    (channel / "noarch").mkdir(parents=True)
    for name, version in least.items():
        {"python": _python, "setuptools": _setuptools}.get(name, _empty)(tmp_path / name)
        rattler_build.assemble_package(
            name, version, "noarch", "0", channel / "noarch", files_dir=tmp_path / name, noarch="generic",
            detect_prefix=False,
        )  # fmt: skip
    _index(channel)
    return channel


def test_the_recipe_builds_a_package_that_passes_its_tests(channel: Path, tmp_path: Path) -> None:
    """Its script installs icesize, and imports, program and demo work in an environment of the package."""
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (source,) = tmp_path.glob("icesize-*.tar.gz")
    text = re.sub(r"(?ms)^source:.*?(?=^build:)", f"source:\n  path: {source}\n\n", RECIPE.read_text())
    recipe = tmp_path / "recipe" / "recipe.yaml"
    recipe.parent.mkdir()
    recipe.write_text(text.replace('python_min: "3.10"', f'python_min: "{THIS}"'))
    (rendered,) = rattler_build.Stage0Recipe.from_file(recipe).render()
    config = rattler_build.ToolConfiguration(test_strategy="skip")
    built = rendered.run_build(config, output_dir=tmp_path / "built", channels=[channel.as_uri()])
    package = rattler_build.Package.from_file(built.packages[0])
    assert package.name == "icesize"
    assert {"site-packages/icesize/presentation/page.html", "site-packages/icesize/py.typed"} <= set(package.files)
    results = package.run_tests(channel=[channel.as_uri()])
    assert [result.success for result in results] == [True, True], "\n".join(line for r in results for line in r.output)
