"""The URL that a user gave for the entry of a chain → checked, or refused with what is wrong with it."""

from urllib.parse import urlsplit

from vindicate.errors import MisuseError
from vindicate.stack.ask import speaks_plain

__all__ = ["checked_url", "refuse_plain"]


def checked_url(url: str) -> str:
    """*url* as the address of a service: with a scheme, without the path of an endpoint.

    Raises:
        MisuseError: It is none, or holds a password.
    """
    remedy = "try: vindicate diagnose http://127.0.0.1:4000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        named = "://" in url or parts.port is not None  # a bare word is more likely a slip than a host
        good = named and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise MisuseError(f"{url!r} is no URL: {error}", remedy=remedy) from error
    if not good or any(sign.isspace() for sign in url):
        raise MisuseError(f"{url!r} is no URL of a service; expected http://HOST:PORT", remedy=remedy)
    if "@" in parts.netloc:
        raise MisuseError(
            "the URL holds a login or password", remedy="name its variable as api_key_env in a stack file instead"
        )
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return base.removesuffix("/chat/completions").removesuffix("/v1")


async def refuse_plain(url: str) -> None:
    """A port that speaks plain HTTP is called with http.

    Raises:
        MisuseError: It does.
    """
    if await speaks_plain(url):
        plain = "http" + url.removeprefix("https")
        raise MisuseError(
            f"{url}: the TLS handshake fails, and plain HTTP is spoken there", remedy=f"try: vindicate diagnose {plain}"
        )
