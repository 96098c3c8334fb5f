"""`python -m scripts.generate`: what it prints, and one clear line for every bad input.

Most runs are calls of the same entry point in this process, which saves importing JAX each time;
pipes, signals and terminals get a process of their own.
"""

import contextlib
import functools
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import gguf
import numpy as np
import pytest
import tiny_checkpoint
from safetensors.numpy import load_file, save_file

from scripts import generate

COMMAND = [sys.executable, "-m", "scripts.generate"]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model. Programs compiled for it are kept for the tests after."""
    folder = tmp_path_factory.mktemp("model")
    return str(tiny_checkpoint.write(folder))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """Nothing is written to the user's cache, and no model is downloaded."""
    import jax

    monkeypatch.setattr(
        "scripts.options.compilation_cache_folder",
        lambda: tmp_path_factory.getbasetemp() / "compiled",
    )
    before = (
        jax.config.jax_compilation_cache_dir,
        jax.config.jax_persistent_cache_min_compile_time_secs,
    )
    yield
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])


@pytest.fixture
def call(call_main):
    """Run the program: (exit code, stdout, stderr)."""
    return functools.partial(call_main, generate)


def errors_in(err):
    return [line for line in err.splitlines() if "error" in line]


def one_line(result, message, code=2):
    """The program ended with `code` and one line that has `message`; nothing on stdout."""
    assert result[0] == code, result
    assert result[1] == ""
    (line,) = errors_in(result[2])
    assert line.startswith("generate: error: ")
    assert message in line
    assert "Traceback" not in result[2]


SAMPLED = ["--prompt", "a", "--temperature", "1"]
BAD_FLAGS = [
    (["--prompt", "a", "--temperature", "-1"], "--temperature must be 0 (greedy) or"),
    (["--prompt", "a", "--temperature", "nan"], "--temperature must be"),
    (["--prompt", "a", "--temperature", "warm"], "--temperature: invalid float value: 'warm'"),
    ([*SAMPLED, "--top-p", "1.5"], "--top-p must be above 0 and at most 1, got 1.5"),
    ([*SAMPLED, "--top-p", "0"], "--top-p must be above 0"),
    ([*SAMPLED, "--top-k", "-1"], "--top-k must be at least 0"),
    ([*SAMPLED, "--min-p", "2"], "--min-p must be from 0 to 1, got 2.0"),
    ([*SAMPLED, "--seed", "-3"], "--seed must be from 0"),
    (["--prompt", "a", "--seed", "3"], "--seed needs --temperature above 0"),
    (["--prompt", "\udcff"], "--prompt 0 is not UTF-8 text"),
    (["--prompt", "a", "--stop", "\udcff"], "--stop is not UTF-8 text"),
    (["--prompt", "a", "--chat", "--system", "\udcff"], "--system is not UTF-8 text"),
    (["--prompt", "a", "--stop", ""], "--stop must be strings of at least one character"),
    (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens must be at least 1, got 0"),
    (["--prompt", "a", "--num-pages", "0"], "--num-pages must be at least 1, got 0"),
    (["--prompt", "a", "--num-pages", "9" * 30], "--num-pages must be at most"),
    (["--prompt", "a", "--page-size", "17"], "--page-size must be a power of two"),
    (["--prompt", "a", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1"),
    (["--prompt", "a", "--max-model-len", "1"], "--max-model-len must be at least 2"),
    (["--prompt", "a", "--memory-fraction", "1.5"], "--memory-fraction must be above 0"),
    (["--prompt", "a", "--memory-fraction", "0"], "--memory-fraction must be above 0"),
    (
        ["--prompt", "a", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"],
        "--max-num-batched-tokens must be at least --max-num-seqs (9)",
    ),
    (["--prompt", "a", "--dtype", "int4"], "--dtype: invalid choice: 'int4'"),
    (["--prompt", "a", "--implementation", "cuda"], "--implementation: invalid choice: 'cuda'"),
    (
        ["--prompt", "a", "--implementation", "triton"],
        "--implementation triton needs a GPU, and JAX runs on: cpu",
    ),
    (["--prompt", "a", "--top-q", "1"], "unrecognized arguments: --top-q 1"),
    (["--prompt", "a", "--temp", "1"], "unrecognized arguments: --temp 1"),
    (["--prompt"], "--prompt: expected one argument"),
    (["--prompt", "a", "--prompts-file", "b"], "not allowed with argument --prompt"),
    (["--prompt", "a", "--num-pages", "1", "--memory-fraction", ".5"], "not allowed with"),
    (["--prompt", "a", "--system", "b"], "--system needs --chat"),
    (["--prompt", "a", "--prompt", ""], "prompt 1 (from --prompt) is empty"),
    (["--prompts-file", "no/such/file"], "no/such/file: No such file or directory"),
    (["--prompt", "a", "--model", "no/such/model.gguf"], "no/such/model.gguf"),
    (["--prompt", "a", "--model", "."], "config.json"),
]


@pytest.mark.parametrize(("argv", "message"), BAD_FLAGS, ids=lambda x: " ".join(x)[:40])
def test_a_bad_flag_is_one_line_and_code_2(call, argv, message):
    one_line(call(*argv), message)


def gguf_of_unknown_architecture(path):
    writer = gguf.GGUFWriter(path, "rwkv9")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_bad_model_file(call, tmp_path):
    unknown = tmp_path / "unknown.gguf"
    gguf_of_unknown_architecture(unknown)
    one_line(call("--prompt", "a", "--model", str(unknown)), "rwkv9")
    for name, keep in (("header.gguf", 10), ("cut.gguf", unknown.stat().st_size - 64)):
        cut = tmp_path / name
        cut.write_bytes(unknown.read_bytes()[:keep])
        one_line(call("--prompt", "a", "--model", str(cut)), name)
    text = tmp_path / "text.gguf"
    text.write_text("this is not a model")
    one_line(call("--prompt", "a", "--model", str(text)), "text.gguf")


def test_a_bad_checkpoint_folder(call, model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()

    weights.write_bytes(whole[: len(whole) // 2])
    one_line(call("--prompt", "a", "--model", str(folder)), "model.safetensors")

    weights.write_bytes(whole)
    tensors = load_file(weights)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name][:-1]}, weights)
    one_line(call("--prompt", "a", "--model", str(folder)), name)

    weights.unlink()
    one_line(call("--prompt", "a", "--model", str(folder)), "safetensors")


def test_prompts_and_sizes_that_do_not_fit_the_model(call, model):
    context = tiny_checkpoint.CONTEXT
    long = "a" * context
    one_line(
        call("--model", model, "--prompt", "b", "--prompt", long),
        f"prompt 1 has {context} tokens: it must have from 1 to {context - 1}",
    )
    one_line(
        call("--model", model, "--prompt", "a", "--max-model-len", "999"),
        f"--max-model-len must be at most the model's context of {context}, got 999",
    )
    one_line(
        call("--model", model, "--prompt", "a" * 40, "--num-pages", "3"),
        "--num-pages is 3",
    )
    one_line(
        call("--model", model, "--prompt", "a", "--memory-fraction", "1e-9"),
        "--memory-fraction 1e-09 of",
    )


def test_a_model_without_a_chat_template(call, model, tmp_path):
    folder = tmp_path / "plain"
    shutil.copytree(model, folder)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    one_line(call("--model", str(folder), "--prompt", "a", "--chat"), "no chat template")


def test_one_prompt_prints_its_text_and_nothing_else(call, model):
    argv = ["--model", model, "--prompt", "Hello", "--max-new-tokens", "20"]
    code, out, err = call(*argv)
    assert code == 0
    assert out.endswith("\n")
    assert "prefill 5 tokens" in err
    assert "decode 19 tokens" in err
    assert "compiling took" in err
    assert "the text ended at --max-new-tokens 20 or at the model length" in err
    code, again, _ = call(*argv)
    assert (code, again) == (0, out)  # greedy
    code, line, _ = call(*argv, "--json")
    found = json.loads(line)
    assert found["text"] in (out, out.removesuffix("\n"))
    assert list(found) == [
        "index", "prompt", "text", "token_ids", "prompt_token_ids", "finish_reason",
    ]  # fmt: skip
    assert found["index"] == 0
    assert found["prompt"] == "Hello"
    assert len(found["prompt_token_ids"]) == 5
    assert len(found["token_ids"]) == 20
    assert found["finish_reason"] == "length"


def test_several_prompts_print_in_order_under_titles(call, model, tmp_path):
    prompts = ["One two", "x" * 70, "Third"]
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(prompts) + "\n\n")
    base = ["--model", model, "--prompts-file", str(path), "--max-new-tokens", "8"]
    code, lines, _ = call(*base, "--json")
    assert code == 0
    completions = [json.loads(line) for line in lines.splitlines()]
    assert [c["prompt"] for c in completions] == prompts
    code, out, _ = call(*base)
    assert code == 0
    titles = ["One two", "x" * 59 + "…", "Third"]
    texts = [c["text"].removesuffix("\n") for c in completions]
    blocks = zip(range(3), titles, texts, strict=True)
    assert out == "\n".join(f"==> {i}: {title} <==\n{text}\n" for i, title, text in blocks)
    # The same ones as JSON strings and objects.
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "\n".join([json.dumps(prompts[0]), json.dumps({"prompt": prompts[1]}), '"Third"'])
    )
    code, again, _ = call(
        "--model", model, "--prompts-file", str(path), "--max-new-tokens", "8", "--json"
    )
    assert (code, again) == (0, lines)


def test_seed_sampling_and_stop(call, model):
    base = ["--model", model, "--prompt", "Hello", "--max-new-tokens", "20", "--json"]
    sampled = [
        *base,
        "--temperature",
        "1.5",
        "--top-k",
        "200",
        "--top-p",
        "0.99",
        "--min-p",
        "1e-4",
    ]

    def ids(*argv):
        code, out, err = call(*argv)
        assert code == 0, err
        return json.loads(out), err

    first, _ = ids(*sampled, "--seed", "1")
    assert ids(*sampled, "--seed", "1")[0] == first
    assert ids(*sampled, "--seed", "2")[0]["token_ids"] != first["token_ids"]
    drawn, err = ids(*sampled)
    seed = err.split("generate: seed ")[1].split()[0]
    assert ids(*sampled, "--seed", seed)[0] == drawn
    greedy, _ = ids(*base)
    stop = greedy["text"][4:6]
    stopped, _ = ids(*base, "--stop", stop, "--stop", "never there")
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == greedy["text"].split(stop)[0]


def test_engine_flags_do_not_change_the_text(call, model):
    base = ["--model", model, "--prompt", "Hello there", "--prompt", "A", "--max-new-tokens", "12",
            "--json"]  # fmt: skip
    _, expected, _ = call(*base)
    code, out, _ = call(
        *base, "--page-size", "4", "--num-pages", "8", "--max-num-seqs", "2",
        "--max-num-batched-tokens", "4", "--max-model-len", "64", "--implementation", "reference",
    )  # fmt: skip
    assert (code, out) == (0, expected)


def test_chat_uses_the_template(call, model):
    base = ["--model", model, "--prompt", "Hi", "--max-new-tokens", "2", "--json", "--chat"]
    code, out, _ = call(*base, "--system", "Be nice")
    assert code == 0
    text = "<s>system: Be nice\n<s>user: Hi\n<s>assistant: "
    found = json.loads(out)
    assert found["prompt"] == "Hi"
    assert len(found["prompt_token_ids"]) == len(text) - 2 * 3  # each <s> is one token
    assert found["prompt_token_ids"].count(0) == 3


def test_a_context_that_cuts_the_answer_is_said(call, model):
    prompt = "a" * (tiny_checkpoint.CONTEXT - 4)
    code, out, err = call("--model", model, "--prompt", prompt, "--json")
    assert code == 0
    assert "leaves room for 4 new tokens" in err
    assert len(json.loads(out)["token_ids"]) == 4


def start(*argv, **options):
    return subprocess.Popen(
        [*COMMAND, *argv], env=ENVIRONMENT, text=True, stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options},
    )  # fmt: skip


def test_help_is_instant_and_complete():
    code = (
        "import sys; from scripts import generate\n"
        "try: generate.main(['--help'])\n"
        "finally: print({'jax', 'numpy', 'models'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == 0
    assert done.stderr == "set()\n"
    for flag in ("--prompts-file", "--chat", "--min-p", "--memory-fraction", "--json", "--stop"):
        assert flag in done.stdout


def test_stdin_is_the_prompt(model):
    argv = ["--model", model, "--max-new-tokens", "3", "--json"]
    with start(*argv, stdin=subprocess.PIPE) as process:
        out, err = process.communicate("two\nlines\n", timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["prompt"] == "two\nlines"
    with start(stdin=subprocess.PIPE) as process:
        out, err = process.communicate("", timeout=60)
    one_line((process.returncode, out, err), "prompt 0 (from stdin) is empty")


def test_a_terminal_without_a_prompt_is_told_what_to_give():
    control, terminal = pty.openpty()
    with start(stdin=terminal) as process:
        out, err = process.communicate(timeout=60)
    os.close(control)
    os.close(terminal)
    one_line((process.returncode, out, err), "no prompt: give --prompt TEXT")


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_closed_pipe_ends_it_quietly(model, flags):
    argv = [arg for i in range(3) for arg in ("--prompt", f"prompt {i}")]
    with start("--model", model, *argv, "--max-new-tokens", "4", *flags) as process:
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=120) == 128 + signal.SIGPIPE
    assert "error" not in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@pytest.fixture
def full_pipe():
    """The writing end of a pipe that takes nothing more: who prints into it waits for ever."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


def test_ctrl_c_is_one_line_and_130(model, full_pipe):
    with start("--model", model, "--prompt", "a", stdout=full_pipe) as process:
        lines = []
        while "loaded" not in "".join(lines):
            lines.append(process.stderr.readline())
            assert lines[-1], "ended early: " + "".join(lines)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=120) == 130, rest
    assert rest.splitlines()[-1] == "generate: interrupted"
    assert "Traceback" not in rest
