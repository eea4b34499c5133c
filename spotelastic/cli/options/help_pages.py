"""Shows the options of `up` page by page: those that most jobs need, then each subject's."""

from typing import Any

from typer.core import TyperCommand

from spotelastic.client.config.panels import PANELS

FIRST = frozenset(
    [
        *("script", "args", "name", "resume", "fresh", "plan", "yes", "json", "drill", "detach"),
        *("local", "region", "min", "max", "instance_types", "gpus", "gpu_memory"),
        *("nproc_per_node", "kube", "storage", "on_demand", "max_price", "max_cost", "deadline"),
        *("snapshot_every", "checkpoint_every", "output", "rehearse", "notify", "keep"),
        *("environment", "setup", "image", "env", "secret"),
    ]
)
"""Arguments and options on the first page, by the names of their fields."""
ALL = "all"
"""The subject that has every option."""


def _subject(panel: str) -> str:
    """Return the word for a panel: `network` for "The account's network"."""
    words = panel.lower().split()
    return next(each for each in words if each != "the" and not each.endswith("'s"))


SUBJECTS = {_subject(panel): panel for panel in PANELS}


class PagedCommand(TyperCommand):
    """A command whose `--help` shows the first page, and `--help SUBJECT` all of a subject.

    What follows `--help` and is no subject is left aside, as it is elsewhere.
    """

    params: list[Any]
    _asked = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] in ctx.help_option_names:
            self._asked = args[1]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from spotelastic.launcher.help import fold_long_names

        panel = SUBJECTS.get(self._asked)
        on_first = panel is None and self._asked != ALL
        for each in self.params:
            is_here = panel in (None, getattr(each, "rich_help_panel", ""))
            each.hidden = each.name not in FIRST if on_first else not is_here
        if panel is not None:
            self.help, self.epilog = f"{panel}: all options of `{ctx.command_path}`.", None
        fold_long_names()
        super().format_help(ctx, formatter)
        if on_first:
            self._list_subjects(f"More options: {ctx.command_path} --help SUBJECT")

    def _list_subjects(self, title: str) -> None:
        """Print the subjects, each with the options that the first page leaves out."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console, lines = Console(), []
        for subject, panel in SUBJECTS.items():
            line = f"{subject:<11}  {panel}: "
            names = [e.opts[0] for e in self.params if e.hidden and e.rich_help_panel == panel]
            for at, name in enumerate(names):
                more = "" if at == len(names) - 1 else ", "
                if len(line + name + more) > console.width - 5:  # the frame, and a sign for more
                    line += "…"
                    break
                line += name + more
            lines.append(line)
        text = Text("\n".join([*lines, f"{ALL:<11}  Every option"]))
        console.print(Panel(text, title=title, title_align="left", border_style="dim"))
