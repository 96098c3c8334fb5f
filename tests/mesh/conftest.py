"""These tests need eight devices: tests/test_on_mesh.py runs them in a process that has them."""

import os

WANTED = "xla_force_host_platform_device_count=8"

if WANTED not in os.environ.get("XLA_FLAGS", ""):
    collect_ignore_glob = ["test_*.py"]
