"""Draws pictures of the documentation: `python tools/docs/pictures.py` writes docs/images/*.svg.

They are white cards, so that they can be read on a light and on a dark page. A test compares the
files with what this draws, and looks whether each text has room in its box.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[2] / "docs/images"
STYLE = (
    ".place{fill:#f4f6f8;stroke:#9aa5b1}.room{fill:#fff;stroke:#3b5b8c}"
    ".good{fill:#e6f3ea;stroke:#2f7d4f}.bad{fill:#fbeaea;stroke:#b03a3a}"
    ".idle{fill:#fdf3dc;stroke:#a87412}.name{font-family:monospace;font-size:13px;fill:#1f3a5f}"
    ".head{font-weight:bold;fill:#222}.say{fill:#555;font-size:12px}"
    ".way{stroke:#3b5b8c;stroke-width:1.5;fill:none;marker-end:url(#tip)}"
    ".line{stroke:#9aa5b1;stroke-width:1.5;fill:none}"
)
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#3b5b8c"/></marker></defs>'
)
WIDTHS = {"name": 7.9, "head": 7.7, "say": 6.4}
"""Pixels that a letter takes at most on the average."""


@dataclass
class Drawing:
    """A picture that is being drawn."""

    title: str
    height: int
    width: int = 980
    parts: list[str] = field(default_factory=list)
    texts: list[tuple[str, float, float]] = field(default_factory=list)
    """Each text in a box, with the width that it takes and the one that it has."""

    def box(self, kind: str, x: int, y: int, size: tuple[int, int], name: str, *says: str) -> None:
        """A box with a name and lines below it. A name in code's letters begins with a backtick."""
        width, height = size
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        style = "name" if name.startswith("`") else "head"
        lines = [(style, name.removeprefix("`")), *(("say", each) for each in says)]
        for number, (style, text) in enumerate(line for line in lines if line[1]):
            self.texts.append((text, len(text) * WIDTHS[style], width - 20))
            self.text(style, x + 10, y + 20 + 17 * number, text)

    def text(self, style: str, x: int, y: int, text: str, anchor: str = "start") -> None:
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text class="{style}" x="{x}" y="{y}"{at}>{escape(text)}</text>')

    def way(self, *points: tuple[int, int], style: str = "way") -> None:
        """An arrow along points; a plain line with the style "line"."""
        path = " L".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<path class="{style}" d="M{path}"/>')

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                'font-family="sans-serif" font-size="14" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                TIP,
                f'<rect {size} rx="10" fill="#ffffff"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def round_life() -> Drawing:
    """From a notice to the next step, and the shorter way of a loss."""
    it = Drawing("What happens between a spot notice, or a lost node, and the next step", 300)
    it.text("head", 20, 30, "With a notice: no step is lost")
    steps = (
        ("good", "Round 7 trains", "on nodes A, B, C"),
        ("idle", "C has a notice", "seen in a second;", "a replacement", "is asked for"),
        ("room", "Step 46 is set", "a little ahead;", "training goes on", "until it is done"),
        ("room", "All save it", "in memory; C goes", "on uploading till", "it is taken"),
        ("room", "Round 8 forms", "A and B answer and", "get their ranks"),
        ("good", "Round 8 trains", "from that step, a", "fraction of a", "second later"),
    )
    _row(it, 44, steps)
    it.text("head", 20, 164, "Without a notice: from the newest save in memory")
    lost = (
        ("good", "Round 7 trains", "on nodes A, B, C"),
        ("bad", "C is gone", "collectives fail,", "or its lease ends"),
        ("room", "Round 8 forms", "with the newest", "save of A and B"),
        ("good", "Round 8 trains", "from that save; in", "place, no step of", "DDP is lost"),
        ("idle", "D arrives", "the replacement;", "A and B send it", "their state"),
        ("good", "Round 9 trains", "on nodes A, B, D"),
    )
    _row(it, 178, lost)
    it.text(
        "say",
        20,
        284,
        "A round is one group of workers: its nodes, their ranks, and the exact save that it "
        "starts from. Each change of nodes starts another one.",
    )
    return it


def _row(it: Drawing, y: int, steps: Sequence[tuple[str, ...]]) -> None:
    for number, (kind, name, *says) in enumerate(steps):
        x = 20 + number * 160
        it.box(kind, x, y, (146, 84), name, *says)
        if number:
            it.way((x - 14, y + 42), (x - 1, y + 42))


def where_state_lies() -> Drawing:
    """Memory, partner and store, and what each survives."""
    it = Drawing("Where a save lies: memory, a partner's memory, the object store", 350)
    columns = (
        ("This node's memory", "a snapshot, every few steps", "training waits for milliseconds"),
        ("A partner's memory", "a replica of shards that", "no other node of the job has"),
        ("The object store", "a checkpoint, every few minutes", "an ordinary DCP folder in S3"),
    )
    for number, (name, *says) in enumerate(columns):
        it.box("place", 245 + number * 245, 20, (225, 66), name, *says)
    for x in (470, 715):
        it.way((x, 53), (x + 19, 53))
    rows = (
        ("A worker crashes", "yes", "not needed", "not needed"),
        ("The node is lost, DDP", "the other nodes have all of it", "not needed", "not needed"),
        ("The node is lost, FSDP", "no: its shards are gone", "yes", "yes, an older step"),
        ("A node and its partner", "no", "no", "yes, an older step"),
        ("All nodes are lost", "no", "no", "yes"),
        ("The job ends, down", "no", "no", "yes, until you delete it"),
    )
    for number, (what, *answers) in enumerate(rows):
        y = 112 + number * 38
        it.text("head", 20, y + 20, what)
        for column, answer in enumerate(answers):
            kind = {"yes": "good", "the": "good", "not": "room"}.get(answer.split()[0].rstrip(","))
            it.box(kind or "bad", 245 + column * 245, y, (225, 30), "", answer)
    return it


def in_place() -> Drawing:
    """In place beside new processes, as two timelines of the survivors."""
    it = Drawing("What the surviving workers do after a node is lost, in place and not", 250)
    it.text("say", 245, 26, "a node is lost")
    it.way((240, 14), (240, 200), style="line")
    it.text("head", 20, 62, "In place")
    it.text("say", 20, 80, "steps()")
    it.box("good", 130, 40, (110, 52), "", "step 812", "begins")
    it.box("bad", 240, 40, (150, 52), "", "undone; the others", "form a group: 0.15 s")
    it.box("good", 390, 40, (120, 52), "", "step 812 again,", "fewer ranks")
    it.box(
        *("good", 510, 40, (450, 52), "", "steps 813, 814, ..."),
        "the same processes: CUDA, model, compiled code, loaders",
    )
    it.text("head", 20, 152, "New ones")
    it.text("say", 20, 170, "step()")
    it.box("good", 130, 130, (110, 52), "", "step 812", "begins")
    it.box("bad", 240, 130, (150, 52), "", "workers end, others", "begin: 0.4 to 2.3 s")
    it.box(
        *("idle", 390, 130, (350, 52), "", "CUDA, NCCL, model, torch.compile, data loaders"),
        "20 to 60 s on GPUs are usual: an estimate",
    )
    it.box("idle", 740, 130, (100, 52), "", "restore", "step 810")
    it.box("good", 840, 130, (120, 52), "", "steps 811, 812,", "813, ...")
    it.text(
        "say",
        20,
        232,
        "0.15 s and 0.4 to 2.3 s were measured on two cores without a GPU, with DDP. "
        "The boxes are not to scale.",
    )
    return it


def a_move() -> Drawing:
    """A move between regions."""
    it = Drawing("How a job moves from one region to another", 300)
    it.box("place", 20, 20, (940, 100), "us-east-1")
    it.box("place", 20, 180, (940, 100), "us-west-2")
    it.box("good", 130, 40, (150, 60), "The job trains", "too few nodes come")
    it.box("room", 310, 40, (160, 60), "1  The job stops", "saves its last step")
    it.box("room", 310, 200, (160, 60), "2  Copied", "by S3, to this bucket")
    it.box("room", 530, 40, (160, 60), "3  Closed", "nobody commits here")
    it.box("room", 530, 200, (160, 60), "4  A cluster", "is made here")
    it.box("good", 750, 200, (180, 60), "The job trains", "from the same step")
    it.box("idle", 750, 40, (180, 60), "5  Taken down", "or left asleep")
    it.way((280, 70), (309, 70))
    it.way((390, 100), (390, 199))
    it.way((470, 230), (500, 230), (500, 70), (529, 70))
    it.way((610, 100), (610, 199))
    it.way((690, 230), (749, 230))
    it.way((840, 200), (840, 101))
    it.text("say", 320, 145, "the newest")
    it.text("say", 320, 161, "checkpoint")
    return it


def an_account() -> Drawing:
    """What a cluster is made of in an account, and what stays."""
    it = Drawing("What spotelastic makes in an AWS account, and what is left after down", 420)
    own = "up, status, logs,", "down: AWS's APIs", "only, no SSH"
    it.box("room", 20, 130, (150, 90), "Your machine", *own)
    it.box("place", 215, 20, (480, 290), "Shared network: a VPC, subnets, routes. Free, stays")
    it.box("place", 235, 55, (440, 235), "The cluster NAME. All of it goes with down")
    for number, zone in enumerate("abc"):
        it.box(
            "room",
            250 + number * 140,
            88,
            (130, 62),
            f"Control node {zone}",
            "etcd, controller",
            "on demand",
        )
    it.box(
        "good",
        250,
        166,
        (268, 58),
        "Workers: --min to --max nodes",
        "spot: agent, script, checkpoint daemon",
    )
    it.box("room", 528, 166, (132, 58), "On demand", "if you ask for it")
    it.box(
        "room", 250, 236, (410, 34), "", "security group, roles, queues, event rules, parameters"
    )
    it.box(
        "place",
        735,
        20,
        (225, 130),
        "S3 bucket. Stays",
        "NAME/: code, packages,",
        "status, events, report",
        "and the checkpoints:",
        "what is left costs money here,",
        "down --delete-data deletes it",
    )
    it.box(
        "place",
        735,
        165,
        (225, 76),
        "CloudWatch Logs. 14 days",
        "/spotelastic/NAME:",
        "what the workers print",
    )
    it.box("place", 735, 256, (225, 54), "Roles. Free, stay", "for interrupt and for down")
    it.way((170, 175), (214, 175))
    it.way((660, 190), (734, 120))
    it.way((660, 200), (734, 205))
    it.box(
        "idle",
        215,
        330,
        (745, 70),
        "If your machine is switched off",
        "The job goes on. Workers end with the job, control nodes ten minutes after it.",
        "If no controller leads any more, AWS itself ends the workers within the hour.",
    )
    return it


def which_loop() -> Drawing:
    """Which loop a script should use."""
    it = Drawing("Which loop to use, by four questions about the script", 470)
    asked = (
        ("Does a library have the loop?", "its Trainer, not your code"),
        ("Do workers push to one server?", "asynchronous training"),
        ("Is the model sharded?", "FSDP, tensor parallel, a mesh"),
        ("Can one whole step be a block?", "batch, backward, optimizer"),
    )
    answers = (
        ("Hugging Face: ElasticTrainer", "in place", "Lightning: ElasticCallback, new processes"),
        ("`ParameterServer", "a standby goes on if the server is lost;", "a block is a window"),
        (
            "`checkpoint.steps(), build=",
            "a function makes the model again;",
            "from the newest save",
        ),
        ("`checkpoint.steps()", "for step in ...: with step:", "in place, and no step is lost"),
    )
    for number, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        y = 20 + number * 95
        it.box("place", 20, y, (320, 66), *question)
        it.box("good", 520, y, (440, 66), *answer)
        it.way((340, y + 33), (519, y + 33))
        it.text("say", 430, y + 26, "yes", anchor="middle")
        it.way((180, y + 66), (180, y + 94))
        it.text("say", 190, y + 85, "no")
    it.box(
        "idle",
        20,
        400,
        (940, 52),
        "`restore() and step(number, loss)",
        "a loop of any form; each change of nodes starts new processes, which resume from the "
        "newest save",
    )
    return it


PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "round.svg": round_life,
    "where-state-lies.svg": where_state_lies,
    "in-place.svg": in_place,
    "move.svg": a_move,
    "account.svg": an_account,
    "which-loop.svg": which_loop,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
