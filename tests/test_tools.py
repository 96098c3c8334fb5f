"""The programs in tools/: what they say to input that cannot be."""

import pytest

from scripts import console
from tools import exported_program, step_gaps


@pytest.mark.parametrize(
    ("program", "argv", "said"),
    [
        (step_gaps, ["--batch", "0"], "--batch=0: must be at least 1"),
        (step_gaps, ["--page-size", "x"], "argument --page-size: invalid int value: 'x'"),
        (exported_program, ["run", "no-such.bin"], "no-such.bin: No such file or directory"),
        (exported_program, ["run", "cut.bin"], "cut.bin: cannot be read as an exported program"),
        (exported_program, ["runs"], "invalid choice: 'runs'"),
    ],
)
def test_bad_input_is_one_line(program, argv, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.bin").write_bytes(b"{\n")
    monkeypatch.setattr("sys.argv", [program.PROG, *argv])
    with pytest.raises(SystemExit) as exit_:
        console.run(program.PROG, program.main)
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (2, "")
    assert err.startswith(f"{program.PROG}: error: ")
    assert said in err
    assert err.count("\n") == 1
