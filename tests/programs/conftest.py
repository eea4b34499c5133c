"""A browser for tests that look at pages; where it is not called chromium, BROWSER is its path."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.store.etcd_members import etcd_member

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["etcd_member"]
PATH = os.environ.get("BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def browser_path() -> str:
    if PATH is None:
        pytest.skip("there is no browser: install chromium, or set BROWSER to one's path")
    return PATH


@pytest.fixture
def browser(browser_path: str) -> "Iterator[Browser]":
    """One for each test: a browser starts processes whenever it likes, and ends them as late."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield browser
        browser.close()
