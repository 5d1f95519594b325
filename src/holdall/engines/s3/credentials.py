"""Where the credentials of a bucket come from.

In this order: the option `credentials=`, a function; the environment; the profile in `~/.aws/credentials`; and
botocore, if it is installed, for everything else that AWS has: instance roles, single sign-on, assumed roles.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import InvalidInput, MissingExtra, Unavailable, shown


class Credentials(NamedTuple):
    """The keys that sign a request."""

    access_key: str
    secret_key: str
    token: str | None = None


def find_source(given: Callable[[], Any] | None, profile: str | None) -> Callable[[], Credentials]:
    """Return a function that returns the credentials of this moment: some expire and are renewed."""
    if given is not None:
        return lambda: _check(_call(given))
    if profile is None and os.environ.get("AWS_ACCESS_KEY_ID"):
        return lambda: _check(_read_environment())
    name = profile or os.environ.get("AWS_PROFILE", "default")
    found = _read_profile(name)
    if found is not None:
        _check(found)
        return lambda: found
    return _find_with_botocore(profile)


def find_region(profile: str | None) -> str | None:
    """Return the region that the environment or the profile names."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    name = profile or os.environ.get("AWS_PROFILE", "default")
    config = _read_file("AWS_CONFIG_FILE", "~/.aws/config")
    for section in (f"profile {name}", name):
        if config.has_option(section, "region"):
            return config.get(section, "region")
    return None


def _call(function: Callable[[], Any]) -> Credentials:
    """Call the function `credentials=`, and check what it returns."""
    try:
        given = function()
    except Exception as error:  # any error: its own kind would be taken for one of the network
        raise Unavailable(f"the credentials of the bucket cannot be renewed: {error!r}") from error
    if (
        isinstance(given, (tuple, list))
        and len(given) in (2, 3)
        and all(isinstance(part, str) for part in given[:2])
        and (len(given) == 2 or given[2] is None or isinstance(given[2], str))
    ):
        return Credentials(*given)
    raise InvalidInput(
        "credentials= must return (access key, secret key) or (access key, secret key, session token), not"
        f" {type(given).__name__}"
    )


def _check(found: Credentials) -> Credentials:
    for part in (found.access_key, found.secret_key, found.token or ""):
        if not (part.isascii() and part.isprintable()):
            raise InvalidInput("the credentials of the bucket have a character that no key has, such as a line break")
    return found


def _read_environment() -> Credentials:
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        raise InvalidInput("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set; set both")
    return Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


def _read_file(variable: str, usual: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    # Not `Path.expanduser`: it fails for a user without a home folder, who has no such file.
    path = os.path.expanduser(os.environ.get(variable) or usual)  # noqa: PTH111
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path!r} is not a file of profiles: {error}") from error
    return parser


def _read_profile(name: str) -> Credentials | None:
    file = _read_file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if not file.has_option(name, "aws_access_key_id") or not file.has_option(name, "aws_secret_access_key"):
        return None
    token = file.get(name, "aws_session_token", fallback=None)
    return Credentials(file.get(name, "aws_access_key_id"), file.get(name, "aws_secret_access_key"), token)


def _find_with_botocore(profile: str | None) -> Callable[[], Credentials]:
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write them to"
            " ~/.aws/credentials, or pass credentials=; for instance roles and single sign-on:"
            " pip install 'holdall[s3]'",
            name=error.name,
        ) from error
    try:
        found: Any = Session(profile=profile).get_credentials()
    except BotoCoreError as error:
        raise InvalidInput(f"no credentials of the profile {shown(profile)}: {error}") from error
    if found is None:
        raise InvalidInput(
            "no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write them to"
            " ~/.aws/credentials, or pass credentials="
        )

    def read() -> Credentials:
        try:
            return Credentials(*found.get_frozen_credentials()[:3])
        except (BotoCoreError, OSError) as error:  # such as the file of a token that is gone
            raise Unavailable(f"the credentials of the bucket cannot be renewed: {error}") from error

    return read
