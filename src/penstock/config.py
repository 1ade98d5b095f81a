# SPDX-License-Identifier: Apache-2.0
"""The node's settings: flags, then environment (``PENSTOCK_*``), then ``HOME/penstock.toml``.

PostgreSQL's names where it has one; times are seconds and sizes bytes unless a name says more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

DEFAULT_LISTEN = "127.0.0.1:5533"

SPREAD_BYTES = 64 * 1024 * 1024
"""Read in 0.6 s on one core; to begin on executors takes 0.3 s, and 5 s if Spark does not run."""


def default_home() -> Path:
    """``~/.penstock``; for root ``/var/lib/penstock``, which its unprivileged server can enter."""
    return Path("/var/lib/penstock") if os.geteuid() == 0 else Path.home() / ".penstock"


class Settings(BaseSettings):
    """Everything that a node can be told; see docs/settings.md."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", env_nested_delimiter="__", extra="forbid", frozen=True
    )
    _toml: ClassVar[Path | None] = None

    home: Path = Field(default_factory=default_home)
    listen: str = DEFAULT_LISTEN
    control: str | None = None
    """libpq connection string of an external control database; None for the embedded one."""
    control_user: str | None = None
    """Unprivileged OS user that runs the embedded control database when the node is root."""
    database: str = "lake"

    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    authentication_timeout: float = 60.0
    max_connections: int = 100

    log_level: str = "info"

    spark: dict[str, str] = Field(default_factory=dict)
    """Any ``spark.*`` setting, with its full name as key."""
    jars: Path | None = None
    """Folder with Delta's jars, for machines without a network."""
    warm_up: bool = True
    """Let Spark run a copy's task and a query after the start, so that the first real ones of
    them find its code loaded and compiled: some CPU seconds in the background."""

    max_sync_workers_per_subscription: int = 2
    """Ranges of one copy that are read at the same time."""
    copy_spread_bytes: int = SPREAD_BYTES
    """Bytes of tables to copy above which Spark's executors read them, not the node."""
    wal_receiver_status_interval: float = 10.0
    wal_receiver_timeout: float = 60.0
    wal_retrieve_retry_interval: float = 5.0
    """Longest pause between two attempts to reach a publisher (they start at a tenth of it)."""
    apply_batch_bytes: int = 512 * 1024 * 1024
    """Staged bytes that one apply batch takes at most, but never less than one transaction."""

    search_spread_rows: int = 20_000_000
    """Rows in files without an index that may have a key of a batch, from which Spark's executors
    look through them."""

    statement_rows: int = 5_000_000
    """Rows of lake tables that one statement may need that changes rows, or reads them to write."""

    autovacuum: bool = True
    """Remove files and log entries of tables that no version within their retention needs."""
    autovacuum_naptime: float = 3600.0
    """Seconds between two looks for such files."""

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 65536):
            raise ValueError("must be HOST:PORT")
        return value

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of the front door; port 0 lets the system choose one."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def lake_path(self) -> Path:
        """Folder of the Delta tables."""
        return self.home / "lake"

    @property
    def staging_path(self) -> Path:
        """Folder of the staged changes, one folder for each subscription."""
        return self.home / "staging"

    @property
    def control_path(self) -> Path:
        """Folder of the embedded control database."""
        return self.home / "control"

    @property
    def pgpass_path(self) -> Path:
        """libpq password file with the node superuser's password, mode 0600."""
        return self.home / "pgpass"

    @property
    def log_path(self) -> Path:
        """The rotating log file."""
        return self.home / "log" / "penstock.log"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment, the environment over the file."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if cls._toml is not None:
            sources.append(TomlConfigSettingsSource(settings_cls, cls._toml))
        return tuple(sources)


def load_settings(**flags: Any) -> Settings:
    """Read the settings of a node; flags that are None count as not given.

    pydantic.ValidationError names each wrong setting.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    home = Path(given.get("home") or os.environ.get("PENSTOCK_HOME") or default_home()).absolute()
    given["home"] = home
    toml = home / "penstock.toml"
    loader = type("NodeSettings", (Settings,), {"_toml": toml if toml.exists() else None})
    settings: Settings = loader(**given)
    return settings
