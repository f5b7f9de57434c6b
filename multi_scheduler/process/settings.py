"""The settings that the programs of this package share: the configuration file, the upper cluster, health and logs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller_runtime.errors import ConfigError
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import FILE_ONLY, UPPER, Setting
from multi_scheduler import config as configuration
from multi_scheduler.config import Config


class ProcessSettings(HealthSettings, kw_only=True):
    """The settings that both programs share, and the content of their configuration file."""

    config_file: Annotated[str, Setting(UPPER, "--config FILE")] = ""
    """Lower clusters, agents and weights: YAML, or tensile-kube's JSON."""
    waits: Annotated[bool, Setting(UPPER, "--wait-for-config")] = False
    """While --config, or a file that it names, cannot be used: report the error and wait, not ready, instead of
    exiting."""
    config: Annotated[Config, FILE_ONLY] = msgspec.field(default_factory=Config)
    rejected: str = ""
    """Why the configuration cannot be used, with ``--wait-for-config``; empty: it can be parsed."""

    def check(self) -> None:
        """Read the configuration, and check the settings together, see ``ProgramSettings.check``.

        Raises:
            ConfigError: ``--config`` is missing, or the configuration is unusable and ``--wait-for-config`` is off.
        """
        if not self.config_file:
            raise ConfigError("--config: required; the file lists the lower clusters")
        try:
            self.config = configuration.load(self.config_file)
        except ConfigError as error:
            if not self.waits:
                raise
            self.rejected = str(error)
