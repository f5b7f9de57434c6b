"""Settings: one declaration of a field gives flag, help, validation and environment variable."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import duration
from controller_runtime.process.program import Program, ProgramSettings
from controller_runtime.process.settings import FILE_ONLY, PROCESS, Port, Positive, Setting


class Retries(msgspec.Struct):
    """A structure in the settings."""

    pause: Annotated[Positive, Setting("retries", "--pause D", parse=duration)] = 90.0
    """Time between ``two`` attempts."""


class File(msgspec.Struct):
    """A structure that only a file sets."""

    hidden: Annotated[str, Setting(PROCESS, "--hidden TEXT")] = ""


class Example(ProgramSettings, kw_only=True):
    """The settings of a program."""

    port: Annotated[Port, Setting("server", "--port PORT", "PORT")] = 80
    """Port to listen on."""
    names: Annotated[tuple[str, ...], Setting("server", "--names LIST")] = ("a", "b")
    """Accepted names."""
    colours: Annotated[tuple[Literal["red", "blue"], ...], Setting("server", "--colours LIST")] = ()
    """Accepted colours."""
    share: Annotated[float, Meta(le=1), Setting("server", "--share N")] = 0.5
    """Share of 100%."""
    retries: Retries = msgspec.field(default_factory=lambda: Retries(pause=30.0))
    file: Annotated[File, FILE_ONLY] = msgspec.field(default_factory=File)
    loads: int = 0

    def load(self) -> None:
        """Set every value, as a file does."""
        self.loads += 1
        self.port, self.names, self.retries = 8000, ("file",), Retries(pause=5.0)


PROGRAM = Program(name="example", about="An example.", settings=Example, run="", rights="")


def test_flag_overrides_variable_and_that_overrides_file():
    assert PROGRAM.parse([], {}).port == 8000
    assert PROGRAM.parse([], {"PORT": "81"}).port == 81
    assert PROGRAM.parse([], {"PORT": ""}).port == 8000
    assert PROGRAM.parse(["--port=82"], {"PORT": "81"}).port == 82


def test_flags_of_nested_structures_override_file():
    assert PROGRAM.parse([], {}).retries.pause == 5
    found = PROGRAM.parse(["--pause=1m", "--names=x, y", "--colours=red", "-v=4"], {})
    assert (found.retries.pause, found.names, found.colours, found.loads) == (60, ("x", "y"), ("red",), 1)
    assert (set(found.given), found.klog.verbosity) == ({"pause", "names", "colours"}, 4)


def test_help_shows_docstrings_variables_and_defaults():
    """The defaults are those of the outer structure; the group of the process is the last."""
    text = " ".join(PROGRAM.parser().format_help().split())
    assert "--port PORT Port to listen on. Default: $PORT, 80" in text
    assert "--pause D Time between two attempts. Default: 30s" in text
    assert "--names LIST Accepted names. Default: a,b" in text
    assert "--share N Share of 100%. Default: 0.5" in text
    assert "--hidden" not in text
    assert text.index("server:") < text.index("retries:") < text.index("process:")


@pytest.mark.parametrize(
    ("argv", "environment", "message"),
    [
        (["--port=65536"], {}, "^--port: 65536 must be at most 65535$"),
        (["--pause=0"], {}, "^--pause: 0 must be more than 0$"),
        (["--share=nan"], {}, "^--share: nan must be at most 1$"),
        (["--colours=red,green"], {}, "^--colours: 'green': write one of red, blue$"),
        ([], {"PORT": "-1"}, "^PORT: -1 must be at least 0$"),
        ([], {"PORT": "x"}, "^PORT: 'x': Expected `int`"),
    ],
)
def test_invalid_values_name_flag_or_variable(argv, environment, message):
    with pytest.raises(ConfigError, match=message):
        PROGRAM.parse(argv, environment)
