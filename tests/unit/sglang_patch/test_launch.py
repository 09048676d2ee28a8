"""What the launcher refuses, and the command line it builds."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from statetap_contract import MissingError, UsageError, dump_name
from statetap_local.service import free_port
from statetap_patch import launch
from statetap_patch.settings import PatchSettings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a-model"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 8,
        "hidden_size": 64,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def sglang_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher only asks whether it could be imported."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())


def prepare(*arguments: str) -> tuple[list[str], dict[str, str]]:
    # A later --port wins.
    with_port = (f"--port={free_port()}", *arguments)
    return launch.prepare(*launch._parser().parse_known_args(with_port))


def test_boundary_indices_become_sglangs_layer_ids(model: Path, dumps: Path) -> None:
    """Boundary k is the output of decoder layer k - 1, which the flag counts from 0."""
    command, environment = prepare(
        f"--model={model}", f"--dumps={dumps}", "--layers", "6", "2", "4"
    )
    flag = command.index("--return-aux-hidden-state-layer-ids")
    assert command[flag + 1 : flag + 4] == ["1", "3", "5"]
    settings = PatchSettings.from_environment(environment)
    assert settings is not None
    assert settings.spec.layers == (2, 4, 6)
    assert settings.raw_layer_ids == (1, 3, 5)
    assert settings.dumps == dumps


def test_no_warm_up_that_a_busy_worker_would_starve(model: Path, dumps: Path) -> None:
    """A server that comes back finds prompts waiting, and is ready all the same."""
    command, _ = prepare(f"--model={model}", f"--dumps={dumps}")
    assert "--skip-server-warmup" in command


def test_other_arguments_go_to_sglang(model: Path, dumps: Path) -> None:
    """The launcher is no wall in front of SGLang's own options."""
    command, _ = prepare(f"--model={model}", f"--dumps={dumps}", "--max-total-tokens", "999")
    assert command[-2:] == ["--max-total-tokens", "999"]


def test_a_cpu_server_gets_what_it_needs(model: Path, dumps: Path) -> None:
    """Its platform, torch's attention, and a pool that SGLang's own option can still change."""
    arguments = (f"--model={model}", f"--dumps={dumps}", "--cpu", "--max-total-tokens=99")
    command, environment = prepare(*arguments)
    assert environment["SGLANG_PLATFORM"] == "statetap_cpu"
    assert "--attention-backend=torch_native" in command
    assert [part for part in command if "total-tokens" in part] == [
        "--max-total-tokens=32768",
        "--max-total-tokens=99",
    ]


def test_what_the_launcher_sets_cannot_be_set_again(model: Path, dumps: Path) -> None:
    """A second value would win over the one that the spec speaks of."""
    for argument in (
        "--served-model-name=x",
        "--speculative-algorithm=EAGLE",
        "--model-pat=/elsewhere",  # SGLang takes abbreviations
        "--served",
        "--config=file.yaml",
        "--quantization",
        "--load-format=dummy",
        "--kv-cache-dtype=fp8_e4m3",
        "--custom-weight-loader",
    ):
        with pytest.raises(UsageError, match="set by statetap-sglang"):
            prepare(f"--model={model}", f"--dumps={dumps}", argument)


@pytest.mark.parametrize("argument", ["--api-key=s3cret", "--api-key", "--api=s3cret"])
def test_a_key_on_the_command_line_is_refused(model: Path, dumps: Path, argument: str) -> None:
    """Everyone on the host could read it; the sentence names where it goes, and not the key."""
    with pytest.raises(UsageError, match="STATETAP_API_KEY") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}", argument)
    assert caught.value.kind == "api-key"
    assert "s3cret" not in caught.value.message


def test_a_key_goes_to_the_server_by_its_environment(
    model: Path, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no client could send is refused at once."""
    monkeypatch.setenv("STATETAP_API_KEY", "s3cret")
    command, environment = prepare(f"--model={model}", f"--dumps={dumps}")
    assert environment["STATETAP_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(command)
    monkeypatch.setenv("STATETAP_API_KEY", "two words")
    with pytest.raises(UsageError, match="STATETAP_API_KEY"):
        prepare(f"--model={model}", f"--dumps={dumps}")


@pytest.mark.parametrize(
    ("mode", "cure"),
    [(0o755, "chmod 700"), (0o770, "chmod 700"), (0o701, "chmod 700"), (0o1777, "mkdir -m 700")],
)
def test_a_folder_that_others_can_enter_is_refused(
    model: Path, dumps: Path, mode: int, cure: str
) -> None:
    """With the command that closes it; nobody is told to close /dev/shm, which is for all."""
    dumps.chmod(mode)
    with pytest.raises(MissingError, match=f"{cure} {dumps}") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}")
    assert caught.value.kind == "dumps-open"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("name", [".", ".lock", ".x.reserved", dump_name("ab" * 16)])
def test_what_belongs_to_another_user_is_refused(model: Path, dumps: Path, name: str) -> None:
    """From a time when they could enter, or because root was given their folder."""
    path = dumps / name
    if name != ".":
        path.touch()
    os.chown(path, 12345, 12345)
    with pytest.raises(MissingError, match=rf"{path} belongs to .*uid 12345") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}")
    assert caught.value.kind == "dumps-foreign"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_what_is_no_dump_is_nobodys_business(model: Path, dumps: Path) -> None:
    """Such as the folder ``lost+found`` that a file system has at its top."""
    (dumps / "lost+found").mkdir()
    os.chown(dumps / "lost+found", 12345, 12345)
    prepare(f"--model={model}", f"--dumps={dumps}")


@pytest.mark.parametrize("is_link", [True, False])
def test_what_stands_in_place_of_the_lock_is_refused(
    model: Path,
    dumps: Path,
    is_link: bool,  # noqa: FBT001  a column of the table
) -> None:
    """By a link, a file would be made, or locked, wherever it leads; a folder is no lock."""
    if is_link:
        (dumps / ".lock").symlink_to(dumps.parent / "elsewhere")
    else:
        (dumps / ".lock").mkdir()
    with pytest.raises(MissingError, match=r"\.lock is no regular file") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}")
    assert caught.value.kind == "dumps-unusable"
    assert not (dumps.parent / "elsewhere").exists()


def test_a_taken_port_is_named(model: Path, dumps: Path) -> None:
    """Before half a minute of loading, not after."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MissingError, match=f"127.0.0.1:{port}") as caught:
            prepare(f"--model={model}", f"--dumps={dumps}", f"--port={port}")
    assert caught.value.kind == "port-taken"


def test_shared_memory_too_small_for_one_prompt_is_refused(
    model: Path, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's default of 64 MB shows at once, with both figures."""

    class Small:
        f_frsize, f_blocks = 4096, 256  # 1 MiB; one prompt of 4,096 tokens needs 4

    monkeypatch.setattr("os.statvfs", lambda _path: Small)
    with pytest.raises(MissingError, match=r"has 1 MiB .* needs 4 MiB") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}")
    assert caught.value.kind == "dumps-too-small"


@pytest.mark.parametrize(("num_mib", "is_said"), [(63, False), (64, True), (65, False)])
def test_dockers_default_of_shared_memory_is_noticed(
    model: Path,
    dumps: Path,
    num_mib: int,
    is_said: bool,  # noqa: FBT001  a column of the table
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has room for a prompt, so nothing fails; it is slow, and nobody would know why."""

    class Room:
        f_frsize, f_blocks = 1 << 20, num_mib

    monkeypatch.setattr("os.statvfs", lambda _path: Room)
    prepare(f"--model={model}", f"--dumps={dumps}")
    said = capsys.readouterr().err
    assert ("64 MB that Docker gives by default" in said) == is_said
    # A row of four slots of 64 float32 has 1,024 bytes, and a prompt here 4,096 of them.
    assert ("room for 16 prompts" in said) == is_said


def test_a_dump_folder_has_one_server(model: Path, dumps: Path) -> None:
    """A second one is refused, and takes nothing away from the first."""
    prepare(f"--model={model}", f"--dumps={dumps}")
    unfinished = dumps / ".attempt.unfinished"
    unfinished.write_bytes(b"rows of the first server")
    with pytest.raises(MissingError, match="another server") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}")
    assert caught.value.kind == "dumps-in-use"
    assert unfinished.exists()


@pytest.mark.parametrize(
    ("argument", "reason"), [("--port=70000", "70000"), ("--port=0", "port 0"), ("--host=?", "?")]
)
def test_impossible_addresses_are_refused(
    model: Path, dumps: Path, argument: str, reason: str
) -> None:
    """With a sentence, not an overflow."""
    with pytest.raises(UsageError) as caught:
        prepare(f"--model={model}", f"--dumps={dumps}", argument)
    assert reason in str(caught.value)


def test_a_missing_dump_folder_is_named(model: Path, tmp_path: Path) -> None:
    """It is not made in silence: it may be a typing error."""
    with pytest.raises(MissingError, match="is not a folder"):
        prepare(f"--model={model}", f"--dumps={tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--dumps=/"], 2, "--model"),
        (["--model=/no/such", "--dumps=/"], 3, "config.json"),
        (["--model=/no/such", "--dumps=/", "--layers", "x"], 2, "--layers"),
    ],
)
def test_the_command_ends_with_one_sentence(arguments: list[str], code: int, reason: str) -> None:
    """No traceback for a user's mistake."""
    ended = subprocess.run(
        [sys.executable, "-c", "from statetap_patch.launch import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert ended.stderr.startswith("statetap-sglang: ")
    assert ended.stderr.count("\n") == 1
    assert reason in ended.stderr


def test_the_state_before_the_norm_is_part_of_the_spec(model: Path, dumps: Path) -> None:
    """Other states, another spec and queue; graphs would run past the code that sees them."""
    command, environment = prepare(f"--model={model}", f"--dumps={dumps}", "--norm=pre")
    settings = PatchSettings.from_environment(environment)
    assert settings is not None
    assert settings.spec.norm == "pre"
    assert "--disable-prefill-cuda-graph" in command


def test_settings_reach_the_plugin(model: Path, dumps: Path) -> None:
    """How long dumps are kept, and whether any SGLang will do."""
    by_default = PatchSettings.from_environment(prepare(f"--model={model}", f"--dumps={dumps}")[1])
    assert by_default is not None
    assert (by_default.keep_s, by_default.is_any_version) == (1800, False)


def test_chosen_settings_reach_the_plugin(model: Path, dumps: Path) -> None:
    """The same, when somebody chose."""
    arguments = (f"--model={model}", f"--dumps={dumps}", "--keep=5", "--any-sglang-version")
    settings = PatchSettings.from_environment(prepare(*arguments)[1])
    assert settings is not None
    assert (settings.keep_s, settings.is_any_version) == (5, True)


@pytest.mark.parametrize("keep", ["0", "-1", "1.5", "soon"])
def test_a_time_that_is_none_is_refused(
    model: Path, dumps: Path, capsys: pytest.CaptureFixture[str], keep: str
) -> None:
    """By its value, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        prepare(f"--model={model}", f"--dumps={dumps}", f"--keep={keep}")
    assert caught.value.code == 2
    assert repr(keep) in capsys.readouterr().err


def test_layers_that_sglang_cannot_capture_leave_the_folder_alone(model: Path, dumps: Path) -> None:
    """Layer 1 alone of a DeepSeek; what an earlier server left unfinished is not swept."""
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = ["DeepseekV3ForCausalLM"]
    (model / "config.json").write_text(json.dumps(config))
    leftover = dumps / ".attempt.unfinished"
    leftover.touch()
    with pytest.raises(UsageError, match="from 2 to 7") as caught:
        prepare(f"--model={model}", f"--dumps={dumps}", "--layers", "1")
    assert caught.value.kind == "layers-impossible"
    assert list(dumps.iterdir()) == [leftover]
