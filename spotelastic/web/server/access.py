"""Decides who may use the dashboard (pure).

It is for the browser to which its address was given, and for no page of anybody else's in that
browser.

What must never happen:

* Another user, or another program, of this machine reads or commands a cluster. Loopback keeps out
  other machines alone. So each request needs a token, which only the printed address has.
* A page of another origin commands a cluster through the user's browser. The cookie is for requests
  of our own pages only (SameSite=Strict), and what a browser says of a request's origin is
  compared. The port counts there: browsers take all ports of a host for one site.
* A name of somebody else's, which resolves to loopback, makes their page ours (DNS rebinding). So
  the Host header has to be a name of loopback.
* The cookie reaches another server on this machine. Cookies do not tell ports apart, so it is for a
  path that has a random name.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Names of loopback. A tunnel to another machine's dashboard keeps them."""
COOKIE = "spotelastic"
OPEN = "/open"
"""The path of the printed address."""
METRICS = "/metrics"
"""The path of metrics. Whoever scrapes keeps no cookie, and gives the token each time."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Sent with every answer. Nothing is loaded from elsewhere, and no text can become a script."""


@dataclass(frozen=True, slots=True)
class DashboardAccess:
    """The secrets of one dashboard, which end with its process."""

    port: int
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)
    cookie: str = field(default_factory=secrets.token_urlsafe, repr=False)
    folder: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """Name of the path below which everything is."""

    @property
    def root(self) -> str:
        """The path below which everything is, with its slashes."""
        return f"/{self.folder}/"

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://127.0.0.1:{self.port}{OPEN}?token={self.token}"

    def opens(self, token: str) -> bool:
        """Whether the address has the right token."""
        return _is_same(token, self.token)

    def refusal(self, method: str, path: str, headers: Mapping[str, str], cookie: str) -> str:
        """Return why a request is refused; empty if it is not."""
        host = headers.get("Host", "").lower()
        if host not in {f"{name}:{self.port}" for name in NAMES}:
            return f"this is the dashboard of 127.0.0.1:{self.port}, and no other name's"
        origin = headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{host}":
            return "the request comes from a page of another origin"
        if method not in ("GET", "HEAD"):
            if origin is None:
                return "the request does not say which page it comes from"
            if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
                return "the request comes from a page of another site"
        if path in (OPEN, METRICS):
            return ""  # their handlers look at the token
        if not path.startswith(self.root) or not _is_same(cookie, self.cookie):
            return "open the address that `spotelastic dashboard` has printed"
        return ""


def _is_same(given: str, secret: str) -> bool:
    """Compare what a browser has sent, which may hold halves of characters, with a secret."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())
