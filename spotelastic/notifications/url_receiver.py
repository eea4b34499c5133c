"""Sends notifications to URLs, each in a process of its own.

A receiver may hang, or answer a byte at a time: a process can be ended at a deadline, and what
apprise needs of memory goes with it. The URL goes to it through a pipe, so that no list of
processes shows it.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from urllib.parse import unquote

from spotelastic.notifications.notification import Notification, SendOutcome
from spotelastic.redaction import SHORTEST, redactor

WITHIN = 20.0


@dataclass(frozen=True, slots=True)
class UrlReceiver:
    """What a URL of Apprise's leads to."""

    name: str
    url: str
    within: float = WITHIN

    def __repr__(self) -> str:
        return f"UrlReceiver({self.name})"

    def send(self, notification: Notification) -> SendOutcome:
        asked = {
            "url": self.url,
            "title": notification.title,
            "text": notification.text,
            "type": notification.type,
            "within": self.within,
        }
        # -P: a module of the working folder does not take another one's place.
        command = [sys.executable, "-P", "-m", "spotelastic.notifications.sending"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(asked),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=self.within,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return SendOutcome(f"no answer within {self.within:g} s", unsure=True)
        except OSError as error:
            return SendOutcome(f"no process could be started: {error.strerror}")
        if done.returncode == 0:
            return SendOutcome()
        said = without_parts(self.url, done.stdout.strip())
        return SendOutcome(said or "it was not delivered")


def without_parts(url: str, text: str) -> str:
    """Return the text without the URL, and without each part of it that may be secret."""
    rest = url.partition("://")[2] or url
    parts = {part for part in re.split(r"[/:@?&=#,\s]", rest) if len(part) >= SHORTEST}
    return redactor({url, rest, *parts, *map(unquote, parts)})(text)
