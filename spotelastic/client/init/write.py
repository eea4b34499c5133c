"""Writes `spotelastic.toml`, and replaces one only if that is meant."""

from pathlib import Path

from spotelastic.client.config.config_file import FILE
from spotelastic.client.config.schema import line
from spotelastic.client.confirmation import Confirm, ConfirmationRequest, ensure
from spotelastic.client.init.folder_facts import folder_facts
from spotelastic.client.init.script_facts import ScriptFacts
from spotelastic.client.init.settings_text import SettingsWanted, settings_text
from spotelastic.errors import UsageError


def write_settings(
    folder: Path, wanted: SettingsWanted, script: ScriptFacts, confirm: Confirm
) -> None:
    """Write the file. Raises `UsageError` if it cannot be written, or is there and shall stay."""
    try:
        text = settings_text(wanted, script, folder_facts(folder), line(folder.absolute()))
        if (folder / FILE).exists():
            ensure(_replaces(), confirm)
            (folder / FILE).write_text(text, encoding="utf-8")
            return
        with (folder / FILE).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {FILE} here: {error.strerror}; change to a folder that you own"
        ) from None


def _replaces() -> ConfirmationRequest:
    return ConfirmationRequest(
        about="file",
        what=f"{FILE} already exists",
        question="Replace it?",
        declined=f"{FILE} stays as it was: edit it",
        instead="edit it",
    )
