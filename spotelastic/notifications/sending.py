"""The process that sends one notification: asked on stdin, it says on stdout what went wrong.

python -m spotelastic.notifications.sending
"""

import json
import logging
import sys

from spotelastic.notifications.urls import quiet


class FirstWarning(logging.Handler):
    """Keeps the first thing that apprise complains of: what the receiver said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage().partition("\n")[0]


def main() -> int:
    """Send what stdin asks for. Returns 0 if it was delivered."""
    asked = json.load(sys.stdin)
    quiet()
    said = FirstWarning()
    logging.getLogger("apprise").addHandler(said)
    import apprise

    found = apprise.Apprise.instantiate(asked["url"], suppress_exceptions=True)
    if found is None:
        print("Apprise does not understand the URL")
        return 1
    # Who cannot be reached is tried again. Who takes a request and does not answer may have taken
    # all of it, and is not: the process is ended first, which tells the two apart.
    found.socket_connect_timeout = asked["within"] / 3
    found.socket_read_timeout = asked["within"] * 2
    sender = apprise.Apprise()
    sender.add(found)
    if sender.notify(body=asked["text"], title=asked["title"], notify_type=asked["type"]):
        return 0
    print(said.text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
