"""Real processes over loopback: `scripts.generate` on several gives what it gives on one device,
and when one of them fails all end, soon and with a reason."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_checkpoint

ROOT = Path(__file__).parent.parent
SECONDS = 240  # that a run may take on a busy machine; a hang is longer
PROMPTS = ["abc", "hello there", "x", "to be, or not to be"]
COMMON = ["--json", "--max-new-tokens", "12", *(part for p in PROMPTS for part in ("--prompt", p))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


def start(*args, devices=1):
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.generate", *map(str, args)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=ROOT, env=env, text=True, errors="replace",
    )  # fmt: skip


def two_free_ports():
    """The first of two neighbours that nobody listens at."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def start_all(count, each, devices, told=None):
    """``each(i)``: the arguments of process i. ``told``: how many it is told there are."""
    port = two_free_ports()
    return [
        start(
            *each(i), "--coordinator", f"127.0.0.1:{port}", "--num-processes",
            (told or [count] * count)[i], "--process-id", i, devices=devices,
        )
        for i in range(count)
    ]  # fmt: skip


def end_all(processes):
    """(exit code, stdout, stderr) of each; none outlives this."""
    try:
        return [(p.wait(SECONDS), p.stdout.read(), p.stderr.read()) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def wanted(folder):
    [(code, out, err)] = end_all([start("--model", folder, *COMMON)])
    assert code == 0, err
    return out


@pytest.mark.parametrize(
    ("count", "shape"), [(2, (4, 2)), (2, (8, 1)), (4, (1, 8)), (4, (2, 4))], ids=str
)
def test_processes_give_what_one_device_gives(folder, wanted, count, shape):
    """Of two kv heads in the model, so that eight devices hold each four times."""
    data, model = shape
    args = ["--model", folder, *COMMON, "--data", data, "--model-parallel", model]
    ended = end_all(start_all(count, lambda i: args, 8 // count))
    assert [code for code, _, _ in ended] == [0] * count, ended[0][2] + ended[1][2]
    assert ended[0][1] == wanted
    assert "compiling took" in ended[0][2]
    for _, out, err in ended[1:]:
        assert out == ""
        assert "generate:" not in err


def test_a_failure_of_one_ends_all_with_its_reason(folder):
    def args(i):
        return ["--model", folder if i == 0 else "nowhere", "--prompt", "abc"]

    (code, _, err), (other_code, _, other_err) = end_all(start_all(2, args, 1))
    assert other_code == 2
    assert "nowhere" in other_err
    assert code == 1
    assert err.splitlines()[-1].startswith("generate: error: process 1 failed: ")
    assert "nowhere" in err
    assert "Traceback" not in err + other_err


def test_a_killed_process_ends_all_at_once(folder):
    args = ["--model", folder, "--prompt", "abc", "--max-new-tokens", "200"]
    processes = start_all(2, lambda i: args, 2)
    try:
        for line in processes[0].stderr:
            if "compiling" in line:
                break
        processes[1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        assert processes[0].wait(60) == 1
        assert time.monotonic() - begin < 10
        said = processes[0].stderr.read()
    finally:
        end_all(processes)
    assert said.splitlines()[-1] == ("generate: error: process 1 is gone, so all processes end")


def test_processes_that_were_told_different_numbers(folder):
    args = ["--model", folder, "--prompt", "abc"]
    (code, _, err), _ = end_all(start_all(2, lambda i: args, 1, told=[2, 3]))
    assert code == 2
    assert err == "generate: error: process 1 is one of 3, and process 0 of 2\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--coordinator", "h:1"], "--coordinator needs --num-processes"),
        (["--process-id", "0"], "--process-id needs --coordinator"),
        (["--data", "0"], "--data must be at least 1, got 0"),
        (["--data", "2", "--model-parallel", "4"], "must be at most the number of devices, 1"),
        (
            ["--coordinator", "h", "--num-processes", "2", "--process-id", "0"],
            "--coordinator must be HOST:PORT with a port from 1 to 65534, got 'h'",
        ),
        (
            ["--coordinator", "h:1", "--num-processes", "2", "--process-id", "2"],
            "--process-id must be from 0 to 1, got 2",
        ),
    ],
)
def test_refused_options(args, message, folder):
    [(code, out, err)] = end_all([start("--model", folder, "--prompt", "abc", *args)])
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
