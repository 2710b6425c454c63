"""Images under the names that the Compose files ask for.

An image that is here, or that the registry gives, is used as it is. Otherwise it is made under the same name: Debian by
`debootstrap`, then what the registries of packages have. Such an image stands for the public one, so that the Compose
files are started unchanged.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from integration import jars
from integration.go_tools import KEPT

HERE = Path(__file__).parent
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_SEAWEEDFS = "github.com/seaweedfs/seaweedfs", "v0.0.0-20261109003541-7506e5f91cd6", "./weed"
"""Builds for 15 minutes of a core."""
_COMPOSE = "github.com/docker/compose/v2", "v2.40.3", "./cmd"

_MAVEN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>icesize</groupId><artifactId>packages</artifactId>
<version>1</version><packaging>pom</packaging><dependencies>{}</dependencies></project>"""

KAFKA = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.kafka:kafka-tools:4.1.0")

Fill = Callable[[Path], object]
"""Puts the files of an image into the folder that it is built from."""


def ensure(names: Iterable[str]) -> None:
    """Make each image available. Raises RuntimeError with the output of what failed."""
    for name in names:
        if not _succeeds("docker", "image", "inspect", name) and not _succeeds("docker", "pull", "--quiet", name):
            _make(name)


def names_in(*files: Path) -> list[str]:
    """Return the images that Compose files and Dockerfiles name, inline ones too, without those that they build."""
    text = "\n".join(file.read_text() for file in files)
    return [
        *re.findall(r"^ +image: (\S+[:/]\S+)$", text, re.MULTILINE),
        *re.findall(r"^ *FROM (\S+)(?: AS \w+)?$", text, re.MULTILINE),
    ]


def _make(name: str) -> None:
    recipe, fill = _RECIPES[name.partition(":")[0]]
    ensure_base()
    _build(name, recipe, fill)


def ensure_base() -> None:
    """Make the image of Debian, with the certificates that this machine trusts."""
    if _succeeds("docker", "image", "inspect", "icesize-base"):
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        keyring = "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"
        _run("debootstrap", "--variant=minbase", keyring, "bookworm", str(root), "http://deb.debian.org/debian")
        packed = Path(folder) / "root.tar"
        _run("tar", "-C", str(root), "-cf", str(packed), ".")
        _run("docker", "import", str(packed), "icesize-debian")
    _build("icesize-base", "base", _trust)


def _build(name: str, recipe: str, fill: Fill) -> None:
    with tempfile.TemporaryDirectory() as context:
        folder = Path(context)
        for script in HERE.glob("*.sh"):
            shutil.copy(script, folder)
        fill(folder)
        dockerfile = HERE / f"{recipe}.Dockerfile"
        _run("docker", "build", "--quiet", "--network=host", "--tag", name, "--file", str(dockerfile), str(folder))


def _trust(folder: Path) -> None:
    shutil.copy(_CERTIFICATES, folder / "certificates.crt")
    told = subprocess.run(("java", "-XshowSettings:properties", "-version"), capture_output=True, text=True, check=True)
    home = re.findall(r"java\.home = (\S+)", told.stderr)[0]
    shutil.copy(Path(home) / "lib" / "security" / "cacerts", folder / "cacerts")


def _nothing(folder: Path) -> None:
    """Put nothing into the folder: the Dockerfile is enough."""


def _s3(folder: Path) -> None:
    shutil.copy(_from_sources("weed", *_SEAWEEDFS), folder / "weed")


def _rest(folder: Path) -> None:
    shutil.copy(jars.rest_server_jar(), folder / "rest-server.jar")


def _kafka(folder: Path) -> None:
    _maven(folder, KAFKA, "copy-dependencies", f"-DoutputDirectory={folder}/jars", "-DincludeScope=runtime")


def _maven(folder: Path, artifacts: Iterable[str], goal: str, *options: str) -> None:
    names = (dict(zip(("groupId", "artifactId", "version"), each.split(":"), strict=True)) for each in artifacts)
    listed = "".join(
        f"<dependency>{''.join(f'<{tag}>{text}</{tag}>' for tag, text in name.items())}</dependency>" for name in names
    )
    (folder / "pom.xml").write_text(_POM.format(listed))
    _run("mvn", "-q", "-B", "-f", f"{folder}/pom.xml", f"{_MAVEN}:{goal}", *options)


def compose_program() -> Path:
    """Return Docker Compose as a program of its own; building it takes five minutes of a core."""
    return _from_sources("docker-compose", *_COMPOSE)


def _from_sources(name: str, module: str, version: str, command: str) -> Path:
    """Return a program in Go, built once. `go install` refuses these modules, because they replace others."""
    kept = KEPT / f"{name}-{version}"
    if not kept.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            told = _run("go", "mod", "download", "-json", f"{module}@{version}", cwd=folder)
            source = Path(folder) / "source"
            shutil.copytree(re.findall(r'"Dir": "([^"]+)"', told)[0], source)
            _run("chmod", "-R", "u+w", str(source))
            _run("go", "build", "-o", f"{folder}/program", command, cwd=source)
            (Path(folder) / "program").replace(kept)
    return kept


def _run(*command: str, cwd: str | Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


_RECIPES: dict[str, tuple[str, Fill]] = {
    "chrislusf/seaweedfs": ("s3", _s3),
    "apache/iceberg-rest-fixture": ("rest", _rest),
    "apache/spark": ("spark", _nothing),
    "apache/kafka": ("kafka", _kafka),
    "python": ("python", _nothing),
}
"""Repository of an image -> the Dockerfile here, and what fills the folder that it is built from."""
