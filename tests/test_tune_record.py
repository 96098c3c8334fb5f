"""The file of tuned tiles: what is wrong in one is named, and the file stays as it is."""

import pytest

from jaxattn import tuning
from scripts import tune_record


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "not a file of tuned tiles"),
        (b'{"format": %d, "cases": {}}', "device is None"),
        (
            b'{"format": %d, "device": "x", "cases": {"a": {"best": null, "versions": {}, '
            b'"date": "", "times": null, "failures": {}, "finished": true}}}',
            "case 'a': times must be an object",
        ),
        (
            b'{"format": %d, "device": "x", "cases": {"a": {"best": null, "versions": {}, '
            b'"times": {}, "failures": {}, "finished": true}}}',
            "case 'a' has no date",
        ),
    ],
)
def test_a_damaged_file_is_named_and_kept(tmp_path, content, reason):
    content = content.replace(b"%d", str(tuning.FORMAT).encode())
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"damaged.json: .*{reason}"):
        tune_record.Record(path, tune_record.device_of(path))
    assert path.read_bytes() == content
