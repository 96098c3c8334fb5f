"""Several processes as one program: a leader that prints, requests that all of them share, and an
end for all when one fails. Also the options that spread a model over devices."""

import argparse
import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import console
from scripts.watch import Watch

START_SECONDS = 50  # for all processes to come


def add_device_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "devices", "default: one device, or with several processes all devices for one model"
    )
    for flag, text in (
        ("--data", "replicas of the model, which share the requests out"),
        ("--model-parallel", "devices that share one replica's heads, columns and vocabulary"),
    ):
        group.add_argument(flag, type=int, metavar="N", help=text)
    group.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="of process 0, which listens there and at the next port; all processes are started "
        "with the same options. Not needed on Cloud TPU: the hosts of a slice find each other",
    )
    group.add_argument("--num-processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process-id", type=int, metavar="I", help="this one's number, from 0")


def check_device_options(args: argparse.Namespace) -> None:
    """ValueError for what is wrong whatever devices there are."""
    together = ("coordinator", "num_processes", "process_id")
    given = [name for name in together if getattr(args, name) is not None]
    if given and len(given) < len(together):
        missing = next(name for name in together if name not in given)
        raise ValueError(f"{_flag(given[0])} needs {_flag(missing)}")
    for name in ("data", "model_parallel", "num_processes"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"{_flag(name)} must be at least 1, got {getattr(args, name)}")
    if not given:
        return
    host, _, port = args.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < (1 << 16) - 1:
        raise ValueError(
            f"--coordinator must be HOST:PORT with a port from 1 to 65534, got {args.coordinator!r}"
        )
    if not 0 <= args.process_id < args.num_processes:
        raise ValueError(
            f"--process-id must be from 0 to {args.num_processes - 1}, got {args.process_id}"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Pod:
    """This process among those of the program. With one process everything here is plain."""

    def __init__(self, processes: int = 1, index: int = 0):
        self.processes, self.index = processes, index

    @property
    def leads(self) -> bool:
        return self.index == 0

    def share(self, value: Any) -> Any:
        """The leader's value, which JSON can hold; the others' is not looked at."""
        if self.processes == 1:
            return value
        import numpy as np
        from jax.experimental import multihost_utils

        text = json.dumps(value).encode() if self.leads else b""
        send = lambda x: multihost_utils.broadcast_one_to_all(x, is_source=self.leads)  # noqa: E731
        size = int(send(np.int32(len(text))))
        filled = np.zeros(size, np.uint8)
        filled[: len(text)] = np.frombuffer(text, np.uint8)
        return json.loads(np.asarray(send(filled)).tobytes())

    def least(self, number: int) -> int:
        """The least of the processes' numbers."""
        if self.processes == 1:
            return number
        import numpy as np
        from jax.experimental import multihost_utils

        return int(np.min(multihost_utils.process_allgather(np.int32(number))))

    def mesh(self, args: argparse.Namespace) -> Any:
        """The mesh that the options ask for; None if that is one device without one.

        ValueError if there are other devices than they need.
        """
        if self.processes == 1 and args.data is None and args.model_parallel is None:
            return None
        import jax

        from models import sharding

        count = len(jax.devices())
        data, model = args.data, args.model_parallel
        data = data or (count // model if model and self.processes > 1 else 1)
        model = model or (count // data if self.processes > 1 else 1)
        asked = f"--data {data} times --model-parallel {model}"
        if data * model > count or (self.processes > 1 and data * model != count):
            rule = "must be at most" if self.processes == 1 else "must be"
            raise ValueError(f"{asked} {rule} the number of devices, {count}")
        return sharding.make_mesh(data, model, jax.devices()[: data * model])


@contextlib.contextmanager
def pod(args: argparse.Namespace) -> Iterator[Pod]:
    """Join the other processes, if there are any. If one of them fails inside, all end.

    ValueError if they do not all come.
    """
    if args.coordinator is not None and args.num_processes > 1:
        host, _, port = args.coordinator.rpartition(":")
        _be_one_of_several(args.process_id)
        with Watch(args.process_id, args.num_processes, (host, int(port))):
            _join(f"{host}:{int(port) + 1}", args.num_processes, args.process_id)
            yield Pod(args.num_processes, args.process_id)
    elif args.coordinator is None and _on_tpu_slice():
        _join()
        import jax

        joined = Pod(jax.process_count(), jax.process_index())
        _be_one_of_several(joined.index)
        address = joined.share([socket.gethostname(), _free_port()])
        with Watch(joined.index, joined.processes, tuple(address)):
            yield joined
    else:
        yield Pod()


def _be_one_of_several(index: int) -> None:
    """Only the leader prints, and no process that fails waits for the others at its exit, as
    jax.distributed does."""
    console.end_at_once()
    _keep_stdout()
    if index > 0:
        console.only_errors()
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


def _keep_stdout() -> None:
    """Give stdout to Python alone: what connects processes on CPUs (Gloo) writes to it too."""
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # a stdout without a file, as in tests
        ours = os.dup(sys.stdout.fileno())
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout = open(ours, "w", encoding="utf-8", errors="replace")  # noqa: SIM115


def _join(*address: Any) -> None:
    """jax.distributed, at an address, of so many processes, as this one; or as found on a TPU."""
    import jax

    jax.distributed.initialize(*address, initialization_timeout=START_SECONDS)


def _on_tpu_slice() -> bool:
    """Whether this is a Cloud TPU host, of which there may be more."""
    names = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if names:
        return len(names.split(",")) > 1
    has_chips = any(Path("/dev").glob("accel*"))
    return has_chips and os.environ.get("JAX_PLATFORMS", "tpu").startswith("tpu")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
