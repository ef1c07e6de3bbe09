import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import frontends
import pytest
from costmodel import Cluster, presets
from frontends.answer.plan import Plan
from frontends.cli.commands import main
from frontends.cli.demo.display import Display, make_console
from frontends.cli.plan_arguments import PlanArguments
from frontends.plan.schedule import names_that_run
from frontends.search.plan_options import STRATEGIES, PlanOptions

TINY_MODEL = ["--layers", "2", "--d-model", "32", "--heads", "2", "--sequence", "16",
              "--batch", "8", "--devices", "4"]  # fmt: skip
TINY = [*TINY_MODEL, "--microbatches", "2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    code = stopped.value.code or 0
    assert isinstance(code, int)
    return code, *capsys.readouterr()


def plain(text: str) -> str:
    """The text of a box, without colours, frame and line breaks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own."""
    # What this process set for its own devices is not the other's.
    kept = {name: value for name, value in os.environ.items() if name != "NPROC"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=kept | environment,
        timeout=600,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Output folder and printed text of a short run in a process of its own."""
    folder = tmp_path_factory.mktemp("train")
    data = folder / "data.txt"
    data.write_text("to be, or not to be, that is the question\n" * 20)
    return folder / "output", train(folder, "output")


def train(folder: Path, output: str) -> str:
    """What a run prints that keeps checkpoints in the folder, or goes on from the last there."""
    arguments = ["train", *TINY, "--strategy", "equal_layers"]
    arguments += ["--steps", "6", "--verify-steps", "3"]
    arguments += ["--data", str(folder / "data.txt"), "--output", str(folder / output)]
    arguments += ["--checkpoints", str(folder / "checkpoints"), "--checkpoint-every", "4"]
    arguments += ["--validate-every", "3"]
    result = python(f"from frontends.cli.commands import main; main({arguments!r})")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def priced(priced_plan: Plan, tmp_path: Path) -> Path:
    """A plan in a file."""
    priced_plan.save(tmp_path / "priced.json")
    return tmp_path / "priced.json"


def test_train_prints_text_plan_progress_and_verification(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    order = [
        "Text: ",
        " of 1 file",
        "Model: GPTConfig(n_layers=2",
        "Plan for cluster two-hosts: ",
        "Stages",
        "Layouts of what each stage reads",
        "training 6/6 loss",
        "Verified: the first 3 losses equal a single device's",
        "too few steps to check how far it fell",
        "Loss on text that was not trained on: ",
        f"Results: {folder}",
    ]
    positions = [printed.index(part) for part in order]
    assert positions == sorted(positions)
    assert re.search(r"training 6/6 loss \d\.\d{3}, [\d,]+ tokens/s", printed)


def test_train_writes_the_plan_it_printed(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    plan = Plan.load(folder / "plan.json")
    assert plan.n_devices == 4
    assert plan.microbatches == 2
    assert str(plan) in "\n".join(line.rstrip() for line in printed.splitlines())


def test_train_goes_on_from_the_last_checkpoint_to_the_same_losses(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = trained
    shutil.copy(folder.parent / "data.txt", tmp_path)
    shutil.copytree(folder.parent / "checkpoints", tmp_path / "checkpoints")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["4", "6"]
    shutil.rmtree(tmp_path / "checkpoints" / "6")  # as if it had been cut off before
    assert "Resuming from the checkpoint of step 4" in train(tmp_path, "output")
    whole, rest = (
        json.loads((path / "losses.json").read_text()) for path in (folder, tmp_path / "output")
    )
    assert (whole["after_step"], rest["after_step"]) == (0, 4)
    assert rest["parallel"] == whole["parallel"][4:]
    assert (whole["validation"].keys(), rest["validation"].keys()) == ({"3", "6"}, {"6"})
    assert rest["validation"]["6"] == whole["validation"]["6"]
    assert "All 6 steps are done" in train(tmp_path, "output")


def test_train_writes_losses_and_pictures(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    names = ["losses.json", "losses.png", "plan.html", "plan.json", "plan.png", "timeline.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    losses = json.loads((folder / "losses.json").read_text())
    assert len(losses["parallel"]) == 6
    assert losses["parallel"][:3] == pytest.approx(losses["single_device"], rel=1e-5)


def test_show_prints_and_draws_a_saved_plan(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    path = str(folder / "plan.json")
    code, printed, _ = run(capsys, "show", path, "--picture", str(tmp_path / "plan.svg"),
                           "--timeline", str(tmp_path / "timeline.svg"))  # fmt: skip
    assert code == 0
    assert "\n".join(map(str.rstrip, printed.splitlines())) == str(Plan.load(path))
    assert {path.name for path in tmp_path.iterdir()} == {"plan.svg", "timeline.svg"}


def test_plan_takes_a_cluster_larger_than_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = replace(Cluster.preset("two-hosts:1"), name="my own")
    (tmp_path / "cluster.json").write_text(cluster.to_json())
    arguments = [*TINY, "--cluster", str(tmp_path / "cluster.json"), "--devices", "9"]
    arguments += ["--layers", "1"]
    arguments += ["--save", str(tmp_path / "plan.json"), "--picture", str(tmp_path / "plan.png")]
    code, printed, errors = run(capsys, "plan", *arguments)
    assert code == 0, errors
    assert printed.startswith("Plan for cluster my own: "), "what was printed can be a file"
    assert Plan.load(tmp_path / "plan.json").n_devices == 9


def test_clusters_of_unlike_hosts_are_named_with_a_plus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    unlike = [*TINY_MODEL[:-2], "--microbatches", "2", "--cluster", "two-hosts:1+virtual-cpu"]
    code, printed, errors = run(capsys, "plan", *unlike, "--save", str(saved))
    assert code == 0, errors
    assert "Plan for cluster two-hosts:1+virtual-cpu: " in printed
    assert any("alone" in other.name for other in Plan.load(saved).alternatives)
    code, _, errors = run(capsys, "plan", *unlike, "--hosts", "3")
    assert code == 2
    assert "are for equal hosts" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say where they are with --checkpoints"),
        (["--checkpoints", "here", "--hosts", "2"], "leave out --hosts"),
        (["--checkpoints", "here", "--devices", "2"], "leave out --devices"),
    ],
)
def test_what_an_elastic_run_cannot_take_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "train", *TINY_MODEL[:-2], "--elastic", *arguments)
    assert code == 2
    assert message in " ".join(errors.replace("│", " ").split())


def test_a_search_is_shown_beside_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed, errors = run(capsys, "plan", *TINY, "--watch")
    assert code == 0
    assert printed.startswith("Plan for cluster ")
    assert "best so far" in errors
    seconds = iter(range(1000))
    monkeypatch.setattr("frontends.cli.demo.display.time.monotonic", lambda: float(next(seconds)))
    with Display(make_console(stderr=True), pause_s=5.0) as display:
        for done in range(21):
            display("pricing stages", done, 20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"pricing stages {done}/20" for done in (4, 9, 14, 19)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--batch", "7"], "the batch's leading dim must be a multiple of microbatches",
                     id="batch not divisible"),
        pytest.param(["--devices", "64"], "JAX has already started, with 8 devices, and cannot "
                     "have 64 any more", id="more devices than JAX started with"),
        pytest.param(["--data", "nowhere.txt"], "there is no nowhere.txt", id="no data"),
        pytest.param(["--sequence", "5000000000"], "bytes; Python's standard library",
                     id="text too short"),
        pytest.param(["--output", "/dev/null/results"], "/dev/null/results: Not a directory",
                     id="output cannot be written"),
        pytest.param(["--memory", "2kB", "--devices", "1", "--hosts", "1", "--layers", "1"],
                     "sums of gradients must fit the devices", id="no memory"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_line_and_exit_code_1(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, errors = run(capsys, "train", *TINY, "--output", str(tmp_path), *arguments)
    assert code == 1
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "3"], "d_model must be a multiple of n_heads"),
        (["--hosts", "3"], "--devices must be a multiple of --hosts; got 4 devices and 3 hosts"),
        (["--cluster", "mine"], f"--cluster is {', '.join(presets())} or a JSON file"),
        (["--memory", "12 parsecs"], "got '12 parsecs'"),
        (["--steps", "0"], "Invalid value for '--steps'"),
        (["--schedule", "2f2b"], "Invalid value for '--schedule'"),
        (["--level", "O4"], "one of O2, O3; got 'O4'"),
        (["--memory-rule", "smallest"], "one of limit, largest; got 'smallest'"),
        (["--pin", "params['head']"], "--pin is NAME=SPEC or NAME=STAGE"),
        (["--pin", "a=RR", "--pin", "a=0"], "takes each name once; got a twice"),
        (["--model", "llama"], "--model is one of gpt-bytes, gpt-tiny, gpt-small, gpt-350m"),
        (["--model", "gpt-tiny"], "a vocabulary of 256 tokens; gpt-tiny has 64"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "train", *TINY, *arguments)
    assert code == 2
    assert message in plain(errors)


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--save", "nowhere/plan.json", "there is no folder nowhere"),
        ("--html", "nowhere/plan.html", "there is no folder nowhere"),
        ("--picture", "plan.pdf", "ends in .png or .svg; got 'plan.pdf'"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_before_the_search(
    option: str, file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, errors = run(capsys, "plan", "--model", "gpt-39b", option, file)
    assert (code, printed) == (1, "")
    assert errors.startswith("error: ")
    assert errors.endswith(f"{message}\n")


def test_a_damaged_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("{}")
    code, _, errors = run(capsys, "show", str(tmp_path / "plan.json"))
    assert code == 1
    assert errors.startswith("error: a plan is a JSON object")


def test_jax_that_started_with_fewer_devices_is_refused(tmp_path: Path) -> None:
    arguments = ["train", *TINY, "--output", str(tmp_path)]
    code = (
        f"import jax; jax.devices(); from frontends.cli.commands import main; main({arguments!r})"
    )
    result = python(code)
    assert result.returncode == 1
    assert "JAX has already started, with 1 devices, and cannot have 4" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_backend_with_fewer_devices_than_the_plan_is_refused() -> None:
    code = """
import frontends.jax, jax, jax.numpy as jnp
from costmodel import Cluster
frontends.jax.init(2)
def step(w, x):
    return w - jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
try:
    frontends.jax.parallelize(step, cluster=Cluster.preset("two-hosts"), microbatches=2)(
        jnp.ones((8, 8)), jnp.ones((16, 8)))
except frontends.DeviceError as error:
    print(error)
"""
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "JAX has 2 cpu devices: call frontends.jax.init(8)" in result.stdout


COMMANDS = ["plan", "show", "compare", "train", "verify", "doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"meshwright {command}" in plain(printed)


def test_the_installed_command_tells_its_version() -> None:
    script = Path(sysconfig.get_path("scripts"), "meshwright")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    assert done.stdout == f"meshwright {frontends.__version__}\n"


@pytest.mark.parametrize(
    ("start", "name"), [([], "meshwright"), (["-m", "frontends"], "python -m frontends")]
)
def test_help_calls_the_command_as_it_was_called(start: list[str], name: str) -> None:
    command = [sys.executable, *(start or [Path(sysconfig.get_path("scripts"), "meshwright")])]
    done = subprocess.run([*command, "plan", "--help"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"Usage: {name} plan" in plain(done.stdout)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "--help")
    assert code == 0
    assert all(f" {command} " in plain(printed) for command in COMMANDS)


@pytest.mark.parametrize(
    ("option", "choices"), [("--schedule", names_that_run()), ("--strategy", STRATEGIES)]
)
def test_names_the_choices(
    option: str, choices: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "plan", option, "nothing")
    assert code == 2
    assert all(choice in plain(errors) for choice in choices)


@pytest.mark.parametrize("command", ["plan", "train"])
def test_what_plans_has_the_options_of_plan_for(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed, _ = run(capsys, command, "--help")
    for name in ("microbatches", "strategy", "schedule", "memory", "level", "memory-rule", "pin"):
        assert f" --{name} " in plain(printed)


def test_options_of_the_search_are_those_of_plan_for() -> None:
    arguments = PlanArguments(
        microbatches=2, schedule="gpipe", strategy="search", memory="1.5 GiB", level="O3",
        memory_rule="largest", pin=["params['head']=RS0", "params['embedding'] = 1"],
    )  # fmt: skip
    assert arguments.job().options == PlanOptions(
        microbatches=2, schedule="gpipe", strategy="search", memory_bytes=3 << 29, level="O3",
        memory_rule="largest", pin={"params['head']": "RS0", "params['embedding']": 1},
    )  # fmt: skip
    assert PlanArguments().job().options == PlanOptions()  # all is the planner's to choose


@pytest.mark.parametrize(
    ("spec", "strategy"), [("RS0", "auto"), ("S0R", "search"), ("S0R", "data_parallel")]
)
def test_a_pin_holds(
    spec: str, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    arguments = ["--pin", f"params['head']={spec}", "--strategy", strategy]
    code, _, errors = run(capsys, "plan", *TINY, *arguments, "--save", str(path))
    assert code == 0, errors
    stored = (v for stage in Plan.load(path).stages for v in stage.inputs)
    assert {str(v.spec) for v in stored if v.value == "params['head']"} == {spec}


@pytest.mark.parametrize(
    ("pin", "rule"),
    [("S9R", "a stage's mesh has axes 0 to 1"), ("7", "4 layers on 4 devices make 4 at most")],
)
def test_a_pin_that_no_plan_can_have_is_one_line(
    pin: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "plan", *TINY, "--pin", f"params['head']={pin}")
    assert code == 1
    assert rule in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("strategy", ["auto", "search"])
def test_pins_that_cannot_be_together_are_said(
    strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = ["--pin", "params['head']=0", "--pin", "params['embedding']=1"]
    code, _, errors = run(capsys, "plan", *TINY, "--strategy", strategy, *pins, "--no-advise")
    assert code == 1
    assert "'two-hosts' with pins of params['head'], params['embedding']: " in errors
    assert errors.endswith(", or pin less\n")


def test_a_search_ends_at_its_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", *TINY, "--search-deadline", "1e-9")
    assert code == 0
    assert "what was not tried" in out
    code, _, errors = run(capsys, "plan", *TINY, "--search-deadline", "0")
    assert code != 0
    assert "--search-deadline" in errors
    assert "a positive number of seconds" in " ".join(errors.replace("│", " ").split())


def test_advice_is_left_out_if_it_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("plan", *TINY, "--strategy", "zero", "--memory", "100KiB")
    assert "What runs: " in run(capsys, *short)[2]
    code, _, errors = run(capsys, *short, "--no-advise")
    assert code == 1
    assert "What runs: " not in errors
    path = tmp_path / "plan.json"
    assert run(capsys, "plan", *TINY, "--search-deadline", "1e-9", "--save", str(path))[0] == 0
    for option in (("--no-advise",), ("--search-deadline", "5")):
        errors = run(capsys, "train", *TINY, "--plan", str(path), *option)[2]
        assert "a saved plan is not searched again" in " ".join(errors.split())


def test_a_pin_that_holds_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "plan", *TINY, "--pin", "params['haed']=RS0")
    assert code == 1
    assert errors.startswith("error: a pin has the name of a value of the step")
    assert "params['head']" in errors
    assert errors.count("\n") == 1


def test_show_explains_a_name_and_writes_the_page(
    priced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = Plan.load(priced)
    name = loaded.stages[0].inputs[0].value
    page = tmp_path / "plan.html"
    code, printed, _ = run(capsys, "show", str(priced), "--explain", name, "--html", str(page))
    assert code == 0
    assert printed == str(loaded.explain(name)) + "\n"
    assert page.read_text() == loaded.html()


def test_an_unknown_name_is_one_line(priced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "show", str(priced), "--explain", "nothing")
    assert code == 1
    assert errors.startswith("error: no operator or value of the plan is called 'nothing'")


def test_a_page_that_cannot_be_written_is_one_line(
    priced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "show", str(priced), "--html", "/dev/null/plan.html")
    assert code == 1
    assert errors.startswith("error: a page is written to a file; /dev/null/plan.html: Not a dir")


def test_compare_prints_the_difference(
    priced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = run(capsys, "compare", str(priced), str(priced))
    assert (code, printed) == (0, "Nothing is different\n")
    before = Plan.load(priced)
    after = replace(before, strategy="zero", step_s=2 * before.step_s)
    after.save(tmp_path / "after.json")
    code, printed, _ = run(capsys, "compare", str(priced), str(tmp_path / "after.json"))
    assert code == 0
    assert "\n".join(map(str.rstrip, printed.splitlines())) == str(before.diff(after))
    assert "strategy" in printed


def test_verify_says_what_was_checked(
    priced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = run(capsys, "verify", str(priced))
    assert code == 0
    assert printed.count("ok: ") == 11
    wrong = replace(Plan.load(priced), memory_limit_bytes=1)
    wrong.save(tmp_path / "wrong.json")
    code, _, errors = run(capsys, "verify", str(tmp_path / "wrong.json"))
    assert code == 1
    assert errors.startswith("error: the parts of a plan fit together; this one's do not: ")
    assert errors.count("\n") == 1


def test_old_plans_are_shown_compared_and_verified(
    priced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(Path(__file__).parent / "golden" / "plan_format_1.json")
    for arguments in (["show", old], ["compare", old, str(priced)]):
        assert run(capsys, *arguments)[0] == 0
    assert "its parts take" in run(capsys, "verify", old)[2]  # a plan written by hand
    assert "is of format 1" in run(capsys, "show", old, "--explain", "add.40")[2]


def test_plans_a_model_by_its_name_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, saved = tmp_path / "plan.html", tmp_path / "plan.json"
    code, printed, errors = run(
        capsys, "plan", "--model", "gpt-tiny", "--cluster", "p3.16xlarge:2", "--devices", "4",
        "--strategy", "data_parallel", "--microbatches", "2", "--layers", "1",
        "--html", str(page), "--save", str(saved),
    )  # fmt: skip
    assert code == 0, errors
    assert "by data_parallel" in printed
    assert Plan.load(saved).html() == page.read_text()
    assert Plan.load(saved).n_devices == 4


def test_a_plan_that_was_saved_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, data = str(tmp_path / "plan.json"), tmp_path / "data.txt"
    data.write_text("to be, or not to be, that is the question\n" * 20)
    small = ["--layers", "1", "--d-model", "16", "--heads", "2", "--sequence", "8", "--batch", "4",
             "--devices", "2"]  # fmt: skip
    code, _, errors = run(
        capsys, "plan", *small, "--strategy", "equal_layers", "--microbatches", "2", "--save", saved
    )
    assert code == 0, errors
    code, printed, errors = run(
        capsys, "train", *small, "--steps", "2", "--verify-steps", "2", "--data", str(data),
        "--plan", saved, "--output", str(tmp_path / "output"),
    )  # fmt: skip
    assert code == 0, errors
    assert "Verified: the first 2 losses equal a single device's" in printed
    assert Plan.load(tmp_path / "output" / "plan.json") == Plan.load(saved)


def test_a_plan_that_was_saved_is_not_searched(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    code, _, errors = run(capsys, "train", *TINY, "--plan", str(folder / "plan.json"))
    assert code == 2
    assert "--microbatches would change nothing" in plain(errors)


def test_a_command_without_jax_says_what_to_install() -> None:
    code = """
import sys
sys.modules["jax"] = None
from frontends.cli.commands import main
main(["plan"])
"""
    result = python(code)
    assert result.returncode == 1
    assert result.stderr == (
        "error: this command needs jax: pip install 'meshwright-frontends[jax]'\n"
    )
