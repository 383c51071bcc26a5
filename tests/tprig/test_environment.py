"""What ran where, and that no secret comes along."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig import environment, evidence
from tprig.environment import REDACTED, collect, redact, redacted_variables, repository

NOTHING = evidence.Repository(commit=None, base=None, dirty=None, diff_digest=None)
SECRET = "s3cr3t-Wert+/=_42"  # noqa: S105


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A work tree with one commit on `main`, in a folder whose name holds a space."""
    folder = tmp_path / "work tree"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("one\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def script(tmp_path: Path, text: str) -> Path:
    """An executable that stands for an interpreter."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- the record ------------------------------------------------------------------------------


def test_the_record_says_what_ran_where(checkout: Path) -> None:
    gpu = evidence.Gpu(uuid="GPU-1", name="n", pci_bus_id="0", memory_total_bytes=1, driver="d")
    tree = repository(checkout)
    found = collect(sys.executable, tree=tree, gpus=[gpu], variables={}, oversubscribed=True)
    assert found.python == sys.version.replace("\n", "\\n")
    assert any(package.startswith("msgspec==") for package in found.packages)
    assert any(package.startswith("pip==") for package in found.packages)
    assert (found.host, found.machine) == (os.uname().nodename, os.uname().machine)
    assert found.kernel == f"Linux {os.uname().release}"
    assert found.cpu
    assert found.cpu_count == len(os.sched_getaffinity(0))
    assert found.memory_bytes == psutil.virtual_memory().total
    assert (found.gpus, found.oversubscribed, found.variables) == ([gpu], True, {})
    assert found.tree == repository(checkout)
    encoded = msgspec.json.encode(found)
    assert msgspec.json.decode(encoded, type=evidence.Environment) == found


def test_the_variables_of_this_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_ONLY", "7")
    assert collect("no such interpreter").variables["VLLM_TEST_ONLY"] == "7"


def test_a_processor_that_names_no_model_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast: 9\n")
    monkeypatch.setattr(environment, "_CPU_INFO", tmp_path / "cpuinfo")
    assert collect("no such interpreter", variables={}).cpu == "Fast: 9"
    monkeypatch.setattr(environment, "_CPU_INFO", tmp_path / "absent")
    monkeypatch.setattr("platform.processor", lambda: "")
    assert "names no model" in collect("no such interpreter", variables={}).cpu


# --- the interpreter under test --------------------------------------------------------------


def test_an_interpreter_without_pip_lists_its_distributions(tmp_path: Path) -> None:
    python = script(tmp_path, f'[ "$1" = -m ] && exit 1\nexec "{sys.executable}" "$@"')
    assert any(p.startswith("msgspec==") for p in collect(python, variables={}).packages)


@pytest.mark.parametrize("text", ["exit 1", "echo {}", "echo 'not json'", "printf '\\377'"])
def test_an_interpreter_that_answers_nonsense_is_unknown(tmp_path: Path, text: str) -> None:
    found = collect(script(tmp_path, text), variables={})
    assert found.python == f"unknown: {tmp_path}/python did not answer"
    assert found.packages == []


@pytest.mark.parametrize("python", ["no such interpreter", "/no/such", "", "/", "a\0b"])
def test_an_interpreter_that_is_not_there_is_unknown(python: str) -> None:
    assert collect(python, variables={}).python.startswith("unknown: ")


def test_an_interpreter_that_hangs_is_stopped_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PROBE_DEADLINE_S", 0.5)
    python = script(tmp_path, f"sleep 1000 & echo $! > '{tmp_path}/pid'\nwait")
    assert collect(python, variables={}).packages == []
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


def test_a_startup_message_does_not_hide_the_answer(tmp_path: Path) -> None:
    python = script(tmp_path, f'printf "welcome"\nexec "{sys.executable}" "$@"')
    assert collect(python, variables={}).python == sys.version.replace("\n", "\\n")


def test_a_virtual_environments_link_is_not_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    real = script(tmp_path / "real", "exit 1")
    (tmp_path / "linked").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}/linked did not" in collect("./linked", variables={}).python


# --- work trees ------------------------------------------------------------------------------


def test_a_clean_work_tree(checkout: Path) -> None:
    (checkout / "x.log").write_text("ignored")
    clean = evidence.Repository(
        commit=head(checkout), base=head(checkout), dirty=False, diff_digest=None
    )
    assert repository(checkout) == clean


def test_a_changed_work_tree_has_the_digest_of_its_diff(checkout: Path) -> None:
    (checkout / "a.py").write_text("two\n")
    git(checkout, "config", "diff.noprefix", "true")
    git(checkout, "config", "color.ui", "always")
    found = repository(checkout)
    plain = git(
        checkout,
        "-c",
        "diff.noprefix=false",
        "-c",
        "color.ui=never",
        "diff",
        "--full-index",
        "HEAD",
    )
    assert found.dirty
    assert found.diff_digest == hashlib.sha256(plain.encode()).hexdigest()
    (checkout / "a.py").write_text("three\n")
    assert repository(checkout).diff_digest != found.diff_digest


@pytest.mark.parametrize("content", ["text\n", "bin\0ary"], ids=["text", "binary"])
def test_the_digest_covers_what_new_files_hold(checkout: Path, content: str) -> None:
    (checkout / "new.py").write_text(content)
    first = repository(checkout).diff_digest
    (checkout / "new.py").write_text(content + "more")
    assert repository(checkout).diff_digest != first
    assert git(checkout, "diff", "--cached") == ""
    assert "?? new.py" in git(checkout, "status", "--porcelain")


def test_an_untracked_file_makes_a_work_tree_dirty(checkout: Path) -> None:
    git(checkout, "config", "status.showUntrackedFiles", "no")
    (checkout / "new.py").write_text("x")
    assert repository(checkout).dirty


def test_the_base_is_where_the_branch_left_upstream_or_main(checkout: Path) -> None:
    base = head(checkout)
    git(checkout, "checkout", "-q", "-b", "topic")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    found = repository(checkout)
    assert (found.commit, found.base) == (head(checkout), base)
    git(checkout, "branch", "other")
    git(checkout, "branch", "-q", "--set-upstream-to=other")
    assert repository(checkout).base == head(checkout)


def test_a_branch_without_any_base(checkout: Path) -> None:
    git(checkout, "branch", "-q", "-m", "main", "alone")
    found = repository(checkout)
    assert (found.commit, found.base) == (head(checkout), None)


def test_a_work_tree_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert repository(tmp_path) == evidence.Repository(
        commit=None, base=None, dirty=False, diff_digest=None
    )


def test_a_hooks_variables_do_not_point_elsewhere(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert repository(checkout).commit == head(checkout)


def test_a_relative_path_is_taken_from_here(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.parent)
    assert repository(Path(checkout.name)).commit == head(checkout)


def test_what_is_no_work_tree_has_no_state(checkout: Path, tmp_path: Path) -> None:
    (checkout / "below").mkdir()
    (tmp_path / "plain").mkdir()
    for folder in (checkout / "below", tmp_path / "plain", tmp_path / "absent"):
        assert repository(folder) == NOTHING


def test_without_git_there_is_no_state(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert repository(checkout) == NOTHING


# --- secrets ---------------------------------------------------------------------------------

PLANTED = {
    "HF_TOKEN": SECRET,
    "VLLM_API_KEY": SECRET,
    "VLLM_KEY_AND_MORE": SECRET,
    "TPRIG_PASSWORD": SECRET,
    "TPRIG_client_secret": SECRET,
    "NCCL_CREDENTIALS": SECRET,
    "TORCH_AUTH": SECRET,
    "CUDA_COOKIE": SECRET,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "BUILDKITE_AGENT_ACCESS_TOKEN": SECRET,
    "BUILDKITE_MESSAGE": SECRET,
    "HOME": SECRET,
    "VLLM_PROXY": f"http://user:{SECRET}@proxy:1/x",
    "VLLM_MIRROR": f"a https://{SECRET.replace('/', '%2F')}@host/x b",
    "VLLM_ARGUMENTS": f"--api-key {SECRET} --token={SECRET} -v",
    "VLLM_CONFIG": f'{{"api_key": "{SECRET} more", "auth_keys": ["{SECRET}"], "n": 1}}',
    "VLLM_URL": f"https://host/x?access_token={SECRET}&y=1",
    "VLLM_HEADER": f"Authorization: Bearer {SECRET}",
    "VLLM_NOTE": f"mine is {SECRET}, keep it",
}


def test_a_planted_secret_is_nowhere_in_the_record(tmp_path: Path) -> None:
    answer = f"package @ git+https://user:{SECRET}@host/x@rev#egg=x"
    python = script(
        tmp_path, f'[ "$1" = -m ] && echo \'{answer}\' && exit 0\nexec "{sys.executable}" "$@"'
    )
    found = collect(python, variables=PLANTED)
    assert SECRET.encode() not in msgspec.json.encode(found)
    assert found.packages == [f"package @ git+https://{REDACTED}@host/x@rev#egg=x"]
    assert found.variables["HF_TOKEN"] == REDACTED
    assert found.variables["VLLM_NOTE"] == f"mine is {REDACTED}, keep it"


@pytest.mark.parametrize("name", [name for name in PLANTED if name != "VLLM_NOTE"])
def test_each_planted_secret_is_redacted_by_itself(name: str) -> None:
    found = str(redacted_variables({name: PLANTED[name]}))
    assert not any(part in found for part in SECRET.split("/"))


def test_what_tells_no_secret_is_recorded_as_it_is() -> None:
    harmless = {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_MAX_TOKENS_PER_EXPERT": "65536",
        "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD": "1024",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LIMITS": "max_tokens=5 num_tokens: 6",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "LD_PRELOAD": "/usr/lib/libtcmalloc.so",
        "PYTHONPATH": "/a:/b",
        "NCCL_DEBUG": "INFO",
        "HF_ENDPOINT": "https://host:8080/path@rev",
        "HF_MIRROR": "git+https://host/path@rev",
        "BUILDKITE_STEP_KEY": "tp2",
        "BUILDKITE_COMMIT": "abc",
    }
    assert redacted_variables(harmless) == harmless


def test_what_does_not_matter_is_not_recorded() -> None:
    assert redacted_variables({"HOME": "/h", "USER": "u", "BUILDKITE_BUILD_AUTHOR": "a"}) == {}


def test_where_the_shell_stands_is_no_secret() -> None:
    variables = {"PWD": "/home/al/x", "OLDPWD": "/home/al", "PYTHONPATH": "/home/alice/lib"}
    assert redacted_variables(variables) == {"PYTHONPATH": "/home/alice/lib"}
    assert redacted_variables({"MYSQL_PWD": "/home/al", "PYTHONPATH": "/home/al"}) == {
        "PYTHONPATH": REDACTED
    }


def test_packages_whose_names_sound_secret_are_kept() -> None:
    for package in ("tiktoken==0.9", "keyring==25.1", "google-auth==2", "tokenizers==0.22"):
        assert redact(package) == package


def test_a_short_secret_does_not_strike_out_what_is_like_it() -> None:
    found = redacted_variables({"VLLM_API_KEY": "1", "OMP_NUM_THREADS": "1"})
    assert found == {"VLLM_API_KEY": REDACTED, "OMP_NUM_THREADS": "1"}


def test_a_value_that_is_no_text_can_be_encoded() -> None:
    found = redacted_variables({"VLLM_X": os.fsdecode(b"\xff\n")})
    assert found == {"VLLM_X": "\\udcff\\n"}
    msgspec.json.encode(found)


@given(st.text(st.sampled_from("TOKENKEYauth-_=: \"'/@?")))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once).count(REDACTED) == once.count(REDACTED)


def test_a_long_value_is_redacted_in_good_time() -> None:
    value = "KEY" * 40_000
    assert redact(value) == value
    assert REDACTED in redact(f"{value}=x")
