"""``config.toml`` in the home directory."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError

CONFIG = "config.toml"
MAX_BYTES = 1_000_000


def read_config(home: Path) -> dict[str, Any]:
    """The whole file as nested dicts; empty when there is none. Raises ``ConfigError`` that names the file, and the line when it
    is no TOML."""
    path = home / CONFIG
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError("the config file is too large", str(path), f"up to {MAX_BYTES:,} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the config file cannot be read ({error.strerror})", str(path), "a readable file, or none") from None
    except UnicodeDecodeError:
        raise ConfigError("the config file cannot be read", str(path), "a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file is no TOML: {error}", str(path), "see https://toml.io") from None
