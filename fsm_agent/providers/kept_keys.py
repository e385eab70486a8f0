"""Keys that a keyring of the machine keeps: ``keyring:<service>/<name>`` stands for one wherever a key is
given, in an argument, in the environment, and in the config file, which holds no key itself."""

from __future__ import annotations

from importlib.util import find_spec

from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import install_command

PREFIX = "keyring:"
FORM = "keyring:<service>/<name>"


def is_kept(text: object) -> bool:
    """Say whether this stands for a key in a keyring."""
    return isinstance(text, str) and text.strip().startswith(PREFIX)


def unkept(text: str) -> str:
    """Return a key: the one that ``text`` stands for, or ``text`` itself. Raises ``ConfigError`` for one that
    no keyring gives."""
    text = text.strip()
    if not is_kept(text):
        return text
    service, _, name = text.removeprefix(PREFIX).rpartition("/")
    if not service or not name:
        raise ConfigError("this names no key of a keyring", text, FORM)
    if find_spec("keyring") is None:
        raise ConfigError("a key in a keyring needs keyring", text, install_command("keyring"))
    import keyring
    from keyring.errors import NoKeyringError

    try:
        key = (keyring.get_password(service, name) or "").strip()
    except NoKeyringError:
        raise ConfigError(
            "this machine has no keyring that can be used", text, "a key, or its variable"
        ) from None
    except Exception as error:  # every backend has errors of its own
        what = f"the keyring cannot be read ({type(error).__name__})"
        raise ConfigError(what, text, "a keyring that is unlocked") from None
    if not key:
        raise ConfigError("the keyring has no such key", text, f"keyring set {service} {name}")
    return key
