"""The file of tuned tiles: what is wrong in one is named, and the file stays as it is."""

import pytest

from jaxattn import tuning
from scripts import tune_record


def case(**changes):
    """A file of one case, with the JSON of some of its fields changed."""
    fields = {"best": "null", "versions": "{}", "date": '""', "times": "{}", "failures": "{}"}
    fields |= {"finished": "true"} | changes
    text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return f'{{"format": %d, "device": "x", "cases": {{"a": {{{text}}}}}}}'.encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "not a file of tuned tiles"),
        (b'{"format": %d, "cases": {}}', "device is None"),
        (case(times="null"), "cases.a.times is null: must be an object"),
        (
            b'{"format": %d, "device": "x", "cases": {"a": {"best": null, "versions": {}, '
            b'"times": {}, "failures": {}, "finished": true}}}',
            "no date in cases.a",
        ),
        (case(times='{"1x16": "x"}'), 'cases.a.times.1x16 is "x": must be a number above 0'),
        (case(times='{"1x16": 0}'), "cases.a.times.1x16 is 0: must be a number above 0"),
        (case(times='{"16": 1.5}'), "tiles '16': must be like"),
        (case(failures='{"1x16": null}'), "cases.a.failures.1x16 is null: must be a string"),
        (case(versions='{"jax": 1}'), "cases.a.versions.jax is 1: must be a string or null"),
        (case(finished="1"), "cases.a.finished is 1: must be true or false"),
    ],
)
def test_a_damaged_file_is_named_and_kept(tmp_path, content, reason):
    content = content.replace(b"%d", str(tuning.FORMAT).encode())
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"damaged.json: .*{reason}"):
        tune_record.Record(path, tune_record.device_of(path))
    assert path.read_bytes() == content
