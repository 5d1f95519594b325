"""The server: a store over HTTP, for every language, for remote engines and for MCP clients, with tokens.

`app` makes an ASGI app of a store. The command `holdall URL serve` runs it.
"""

from ..errors import MissingExtra

try:
    from .app import app
    from .auth.tokens import RIGHTS, Token, Tokens
    from .exchange import Limits
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"the server needs the package {missing.name!r}: pip install 'holdall[server]'", name=missing.name
    ) from missing

__all__ = ["RIGHTS", "Limits", "Token", "Tokens", "app"]
