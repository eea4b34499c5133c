"""`adapt` puts a Checkpointer around a loop that it understands whole, and refuses others."""

import ast
from pathlib import Path
from textwrap import dedent, indent

import pytest
from support.scripts.scripts_in_epochs import STEP, epochs
from typer.testing import CliRunner

from spotelastic.cli.app import app
from spotelastic.client.adapt.adapt import Adapted, adapted
from spotelastic.client.adapt.new_script import TEXT
from spotelastic.client.adapt.source import NotUnderstood
from spotelastic.client.config.config_file import FILE
from spotelastic.errors import UsageError

SCRIPTS = Path(__file__).parents[2] / "support/scripts/plain_scripts"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py"))


NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1))
        self.last = nn.Linear(2, 1)
    def forward(self, x):
        self.n += 1
        return self.last(x)
"""


def of(name: str) -> Adapted:
    return adapted((SCRIPTS / f"{name}.py").read_text(), f"{name}.py", workers=2)


def below(text: str) -> str:
    """What an adapted script has below the last line of BEGIN."""
    return adapted(text, "train.py").after.partition("batch_sampler=sampler)\n")[2]


# -- what is converted -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_of_the_loop_stays_as_it_was_written(name: str) -> None:
    made = of(name)
    ast.parse(made.after)
    assert "se.Checkpointer(" in made.after and "import spotelastic as se" in made.after
    before, after = (
        {line.strip() for line in text.split("\n")} for text in (made.before, made.after)
    )
    assert {line for line in before if line.startswith("#")} <= after
    assert len(before - after) <= 9, before - after
    with pytest.raises(UsageError, match="uses spotelastic already"):
        adapted(made.after, f"{name}.py")


def test_a_plain_loop_keeps_its_number_and_says_its_loss() -> None:
    made = of("plain_loop").after.partition("# train\n")[2]
    assert made.startswith(
        dedent("""\
        state = {"model": model, "optimizer": optimizer}
        with se.Checkpointer(state) as checkpoint:
            for this_step in checkpoint.steps(STEPS):
                with this_step:
                    step = this_step.number - 1
                    x = torch.randn(16, 8)
                    y = x.sum(dim=1, keepdim=True)
                    loss = nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    this_step.loss = loss
                    optimizer.step()
        """)
    )


def test_epochs_and_what_they_carry_are_gone_on_with() -> None:
    text = epochs(
        "total += loss.item()\nsteps += 1\n",
        before="steps, best = 0, None\n",
        head="total = 0.0\n",
        end="scheduler.step()\nbest = total if best is None else min(best, total)\n",
        after='print("best", best)\n',
    )
    assert below(text) == dedent("""\
        steps, best = 0, None
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "best": None, \
"steps": 0, "total": 0.0, "sampler": loader.batch_sampler}
        with se.Checkpointer(state) as checkpoint:
            for epoch in checkpoint.epochs(3, len(loader)):
                best = state["best"]
                total = 0.0
                batches = checkpoint.batches(loader)
                for step in checkpoint.steps((epoch + 1) * len(loader)):
                    with step:
                        x = next(batches)
                        steps = state["steps"]
                        total = state["total"] if (step.number - 1) % len(loader) else 0.0
                        loss = model(x).mean()
                        optimizer.zero_grad()
                        loss.backward()
                        step.loss = loss
                        optimizer.step()
                        total += loss.item()
                        steps += 1
                        state["steps"] = steps
                        state["total"] = total
                steps = state["steps"]
                total = state["total"]
                scheduler.step()
                best = total if best is None else min(best, total)
                state["best"] = best
            best = state["best"]
        print("best", best)
        """)


@pytest.mark.parametrize(
    "last",
    [
        "x = next(iter(held_out))",
        "open('log.txt', 'a').write(str(epoch).rjust(4))",
        "print(sorted([2, 1]).index(1))",
    ],
)
def test_objects_that_an_epoch_makes_anew_are_no_concern_of_the_state(last: str) -> None:
    text = epochs(before="held_out = [torch.zeros(2)]\n", end=last)
    assert f"        {last}\n" in f"{below(text)}\n"


@pytest.mark.parametrize(
    "tells",
    ["print(f'{epoch} {loss:.3f}')", "print(loss.detach().cpu().item())", "print(float(loss))"],
)
def test_the_last_loss_is_the_checkpointers_where_what_follows_tells_its_number(tells: str) -> None:
    """Each worker has its own, which is no value of the state."""
    lines = below(epochs(end=f"{tells}\n", after="print('final', loss.item())\n")).splitlines()
    steps = lines.index("                optimizer.step()") + 1
    assert lines[steps:] == [
        "        loss = checkpoint.loss",
        f"        {tells}",
        "    loss = checkpoint.loss",
        "print('final', loss.item())",
    ]
    assert '"loss"' not in "".join(lines)


def test_epochs_that_count_from_one_go_on_counting_from_one() -> None:
    made = below(epochs().replace("range(3)", "range(1, n + 1)"))
    assert "for epoch_number in checkpoint.epochs(n, len(loader)):" in made
    assert "        epoch = epoch_number + 1\n" in made
    assert "checkpoint.steps((epoch_number + 1) * len(loader))" in made


@pytest.mark.parametrize(
    ("last", "count"),
    [("9", "9 - 1"), ("n if n else 3", "(n if n else 3) - 1"), ("1 + n", "(1 + n) - 1")],
)
def test_as_many_epochs_are_made_as_the_script_counts(last: str, count: str) -> None:
    made = below(epochs().replace("range(3)", f"range(1, {last})"))
    assert f"checkpoint.epochs({count}, len(loader))" in made


def test_names_that_are_taken_are_left() -> None:
    made = below(epochs("print(i)\n", before='checkpoint = state = step = batches = "last.pt"\n'))
    assert 'saved_state = {"model": model' in made and "train_batches = " in made
    assert "with se.Checkpointer(saved_state) as checkpointer:" in made
    assert "i = (this_step.number - 1) % len(loader)" in made


def test_a_global_name_begins_with_what_the_module_has() -> None:
    text = epochs().partition("for epoch")
    inner = "".join(f"    {line}\n" for line in "".join(text[1:]).splitlines())
    main = f"best = 9.0\ndef main():\n    global best\n{inner}        best = min(best, epoch)\n"
    made = adapted(f"{text[0]}{main}    print(best)\nmain()\n", "train.py").after
    assert '"best": 9.0, "sampler": loader.batch_sampler' in made


@pytest.mark.parametrize("taken", ["se = 2.0\n", "import statistics as se\n"])
def test_a_script_whose_own_name_is_se_gets_the_whole_name(taken: str) -> None:
    made = adapted(epochs(before=taken), "train.py").after
    assert "\nimport spotelastic\n" in made and "spotelastic as" not in made
    assert "with spotelastic.Checkpointer(state)" in made
    assert "spotelastic.ElasticSampler(data, " in made and taken in made


def test_what_python_reads_in_the_first_lines_stays_there() -> None:
    first = "#!/usr/bin/env python\n# coding: latin-1\n# A script.\n"
    made = adapted(first + "DEBUG = False\n" + epochs(), "train.py").after
    assert made.startswith(f"{first}import spotelastic as se\nDEBUG = False\n")


@pytest.mark.parametrize(
    "teacher",
    [
        "teacher = nn.BatchNorm1d(2)\n",
        "class Net(nn.Module):\n    pass\nteacher = Net().to(device)\n",
        "teacher = resnet18()\nteacher.to(device)\n",
    ],
)
def test_a_module_that_the_loop_calls_is_saved_though_no_optimizer_has_it(teacher: str) -> None:
    text = epochs(body=STEP.replace("model(x)", "model(teacher(x))"), before=teacher)
    assert 'state = {"model": model, "teacher": teacher, "optimizer": optimizer' in below(text)


def test_a_model_that_follows_another_one_is_saved() -> None:
    text = epochs(
        "for p, q in zip(target.parameters(), model.parameters()):\n    p.data.copy_(q.data)\n",
        before="target = nn.Linear(2, 1)\n",
    )
    assert 'state = {"model": model, "target": target, "optimizer": optimizer' in below(text)


def test_what_keeps_nothing_is_neither_saved_nor_refused() -> None:
    """A loss, an evaluation over a loader, functions whose arguments only look like a name."""
    text = epochs(
        body=STEP.replace("model(x).mean()", "criterion(model(x), x)"),
        before=(
            "criterion = nn.MSELoss()\n"
            "others = DataLoader(load(), batch_size=2)\n"
            "class Generator(nn.Module):\n"
            "    def forward(self, x):\n"
            "        self.shown = x\n"
            "        return self.shown\n"
            "def rate(epoch):\n"
            "    return 1 / (epoch + 1)\n"
            "def tried(model, loader):\n"
            "    right = 0\n"
            "    for x, y in loader:\n"
            "        right += model(x).argmax(1).eq(y.view_as(x)).sum().item()\n"
            "    return right\n"
        ),
        end="print(tried(model, others), rate(epoch))\n",
    )
    assert 'state = {"model": model, "optimizer": optimizer, "sampler"' in below(text)


def test_the_batch_of_all_workers_is_that_of_one_times_their_number() -> None:
    made = of("ddp_epochs")
    assert "global_batch=batch_size * 2, seed=7, drop_last=True)" in made.after
    assert "DataLoader(dataset, batch_sampler=sampler)" in made.after
    assert not made.notes
    with pytest.raises(NotUnderstood, match=r"ddp_epochs.py, line 23: .*--workers N"):
        adapted(made.before, "ddp_epochs.py")


@pytest.mark.parametrize(
    ("backward", "is_number"),
    [
        ("loss.backward()", True),
        ("loss.backward(retain_graph=True)", True),
        ("scaler.scale(loss).backward()", True),
        ("criterion(loss, x).backward()", False),
        ("loss.backward(torch.ones(3))", False),
        ("loss.backward(gradient=ones)", False),
        ("loss[0].backward()", False),
        ("loss.mean().backward()", False),
        ("loss.backward()\n(loss * 2).backward()", False),
    ],
)
def test_a_loss_is_shown_where_it_is_one_number(backward: str, is_number: bool) -> None:
    made = below(epochs(body=STEP.replace("loss.backward()", backward)))
    assert ("step.loss = loss" in made) == is_number


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_tabs_and_ends_of_lines_stay(ending: str) -> None:
    text = (SCRIPTS / "tabs_and_globals.py").read_text().replace("\n", ending)
    made = adapted(text, "tabs.py").after
    assert f"{ending}\t\t\twith step:{ending}\t\t\t\tbatch = next(batches){ending}" in made
    assert len(made.split(ending)) == len(made.splitlines()) + 1


def test_lines_that_end_otherwise_than_the_first_keep_their_ends() -> None:
    first, _, rest = epochs("print(i)\n", after="print(1)").partition("\n")
    made = adapted(f"{first}\r\n{rest}", "train.py").after
    assert made.startswith(f"{first}\r\n") and made.endswith("\nprint(1)")
    assert made.count("print(i)\n") == 1


def test_a_loop_that_ends_the_text_has_its_last_lines_on_their_own() -> None:
    made = below(epochs("seen.append(i)", before="seen = []\n").rstrip())
    assert made.endswith(
        'seen.append(i)\n                state["seen"] = seen\n        seen = state["seen"]\n'
    )


def test_other_letters_in_the_head_of_a_loop_are_one_letter_each() -> None:
    text = epochs().replace("i, x in enumerate(loader)", 'x in tqdm(loader, desc="Épöqüé")')
    made = below(text)
    assert 'desc="Épöqüé"):\n            with step:\n' in made


def test_a_class_and_a_function_of_a_name_of_ours_are_left() -> None:
    made = adapted(
        epochs("print(step(i))\n", before="class se:\n    pass\ndef step(n):\n    return n\n"),
        "train.py",
    ).after
    assert "spotelastic.Checkpointer(state)" in made and "with this_step:" in made


def test_the_inside_of_a_text_of_several_lines_does_not_move() -> None:
    text = epochs('print("""a\n b\n""", i)\n')
    assert text[text.index('"""a') : text.index(", i)\n")] in below(text)


@pytest.mark.parametrize(
    "given",
    [
        {"end": "model.eval()\nprint(model(x0))\nmodel.train()\n"},
        {"end": "if epoch == 1:\n    model.norm.eval()\n"},
        {"head": "model.train()\nmodel.norm.eval()\n", "end": "model.eval()\n"},
        {"body": "model.train()\n" + STEP, "end": "model.train(False)\n"},
        {"step": "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nprint(norm)\n"},
        {"body": "with torch.enable_grad():\n" + indent(STEP, "    ")},
        {"before": "later = optim.lr_scheduler.StepLR(optimizer, 2)\n",
         "step": "if epoch:\n    later.step()\n"},
        {"before": "class Words:\n    def __init__(self):\n        self.all = []\n"
         "    def learn(self, word):\n        self.all.append(word)\nwords = Words()\n"
         "words.learn('a')\n", "step": "print(words.all)\n"},
        {"before": NET, "step": "print(Net()(x))\n"},
        {"head": "rate = optimizer.param_groups[0]['lr']\n", "end": "print(rate)\n"},
        {"head": "weights = list(model.parameters())\n", "step": "print(len(weights))\n"},
        {"step": "print('a', file=sys.stderr)\n", "before": "import sys\n"},
    ],
)  # fmt: skip
def test_what_leaves_nothing_behind_is_converted(given: dict[str, str]) -> None:
    assert "se.Checkpointer(state)" in adapted(epochs(**given), "train.py").after


@pytest.mark.parametrize(
    ("begun", "first"),
    [
        ("best = -float('inf')\n", "-float('inf')"),
        ("best = math.inf\n", "math.inf"),
        ("best = 2 * 3\n", "2 * 3"),
    ],
)
def test_a_number_begins_with_what_is_written(begun: str, first: str) -> None:
    made = below(epochs("best = max(best, loss.item())\n", before=begun, after="print(best)\n"))
    assert f'"best": {first}, ' in made


def test_a_list_that_was_filled_before_the_loop_begins_with_that() -> None:
    made = below(epochs("seen.append(i)\n", before="seen = [1]\nseen.append(2)\n"))
    assert '"seen": seen, ' in made


def test_turns_that_are_counted_from_a_number_go_on_from_it() -> None:
    text = epochs("print(i)\n").replace("enumerate(loader)", "enumerate(loader, start=1)")
    assert "i = (step.number - 1) % len(loader) + 1\n" in below(text)


# -- the commands ----------------------------------------------------------------------------------


def test_the_diff_is_shown_and_nothing_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text((SCRIPTS / "plain_loop.py").read_text())
    done = CliRunner().invoke(app, ["adapt", str(file)])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"--- {file}\tbefore\n+++ {file}\tadapted\n@@ ")
    assert f"nothing was changed: `spotelastic adapt {file} --write`" in done.stderr
    assert "Checkpointer" not in file.read_text()


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_changed_script_leaves_what_it_was_and_never_loses_that(
    tmp_path: Path, coding: str
) -> None:
    file = tmp_path / "train.py"
    text = f"# -*- coding: {coding} -*-\n# ä\n" + (SCRIPTS / "plain_loop.py").read_text()
    file.write_bytes(text.encode(coding))
    done = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert done.exit_code == 0
    assert (tmp_path / "train.py.orig").read_bytes() == text.encode(coding)
    made = file.read_bytes().decode(coding)
    assert "se.Checkpointer" in made and "# ä" in made
    file.write_text(text)
    again = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert isinstance(again.exception, UsageError) and "nothing was changed" in str(again.exception)
    assert file.read_text() == text


def test_only_what_was_written_is_rehearsed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    text = (SCRIPTS / "plain_loop.py").read_text()
    file.write_text(text)
    refused = CliRunner().invoke(app, ["adapt", str(file), "--rehearse"])
    assert isinstance(refused.exception, UsageError)
    assert "--write has written" in str(refused.exception)
    assert file.read_text() == text


def test_a_new_script_is_python_and_never_overwrites_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("train.py")
    assert CliRunner().invoke(app, ["init", "--example"]).exit_code == 0
    assert file.read_text() == TEXT.replace("{name}", file.as_posix())
    ast.parse(file.read_text())
    assert 'script = "train.py"' in Path(FILE).read_text()
    again = CliRunner().invoke(app, ["init", "--example"])
    assert isinstance(again.exception, UsageError) and "is there already" in str(again.exception)
    other = CliRunner().invoke(app, ["init", "--example", "train"])
    assert "ends with .py" in str(other.exception)


def test_a_new_script_leaves_the_settings_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text("min = 3\n")
    assert CliRunner().invoke(app, ["init", "--example", "other.py"]).exit_code == 0
    ast.parse(Path("other.py").read_text())
    assert Path(FILE).read_text() == "min = 3\n"
