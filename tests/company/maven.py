"""The Java libraries of ``java/pom.xml``, kept in the cache."""

from __future__ import annotations

import hashlib
import shutil

from hack.sandbox import SandboxError
from hack.sandbox.builds.programs import Progress, cache_directory
from hack.sandbox.command import command
from tests.company.software import POM

_SECONDS = 1200.0


async def ensure(progress: Progress) -> str:
    """Return the class path of the libraries; a change of the file makes a new folder.

    Raises:
        SandboxError: Maven or Java is missing, or the libraries cannot be downloaded.
    """
    if not shutil.which("mvn") or not shutil.which("javac"):
        raise SandboxError("this entry needs Java and Maven: apt-get install maven openjdk-17-jdk-headless")
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    place = cache_directory() / f"company-java-{digest}"
    if not (place / "complete").exists():
        progress(f"downloading the libraries of {POM.name} from Maven Central, kept in {place}")
        shutil.rmtree(place, ignore_errors=True)
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={place}")
        await command(["mvn", "--batch-mode", "--quiet", "--file", POM, *goal], timeout=_SECONDS)
        (place / "complete").touch()
    return f"{place}/*"
