import math
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.cli.demo import text
from frontends.cli.demo.text import Text, batches, read_text, standard_library
from frontends.cli.demo.train import TrainingJob, check_fallen, make_folder
from frontends.errors import DataError, DeviceError, OutputError, VerificationError
from frontends.models import gpt
from hypothesis import given
from hypothesis import strategies as st


def as_text(data: bytes) -> Text:
    return Text(np.frombuffer(data, np.uint8), "a test", 1, is_cut=False)


@given(st.binary(min_size=2, max_size=50), st.integers(1, 5), st.integers(0, 2**32), st.data())
def test_batches_are_pieces_of_the_text_and_what_follows(
    data: bytes, batch: int, seed: int, draw: st.DataObject
) -> None:
    sequence = draw.draw(st.integers(1, len(data) - 1))
    for tokens, targets in islice(batches(as_text(data), batch, sequence, seed), 3):
        assert tokens.shape == targets.shape == (batch, sequence)
        assert tokens.dtype == targets.dtype == np.int32
        for row, following in zip(tokens, targets, strict=True):
            assert bytes(row.tolist()) + bytes(following[-1:].tolist()) in data
            assert row[1:].tolist() == following[:-1].tolist()


def test_the_seed_alone_decides_the_batches() -> None:
    data = as_text(bytes(range(256)))

    def drawn(seed: int) -> list[list[int]]:
        return [tokens.tolist() for tokens, _ in islice(batches(data, 4, 8, seed), 5)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_every_piece_of_the_text_is_drawn() -> None:
    tokens, targets = next(batches(as_text(b"abcd"), 200, 2, 0))
    assert {bytes(row) for row in tokens.astype(np.uint8)} == {b"ab", b"bc"}
    assert {bytes(row) for row in targets.astype(np.uint8)} == {b"bc", b"cd"}


def test_a_text_shorter_than_a_piece_is_refused_at_once() -> None:
    with pytest.raises(DataError, match=r"10 bytes; a test has 9: give more with --data"):
        batches(as_text(b"nine here"), 1, 9, 0)


@given(st.binary(max_size=100))
def test_reads_any_bytes_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("text") / "file"
    path.write_bytes(content)
    assert read_text(path).data.tobytes() == content


def test_reads_a_folder_in_the_order_of_its_paths_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a", ".hidden", ".git/x", "c"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<{name}>")
    read = read_text(tmp_path)
    assert read.data.tobytes() == b"<a><b/1><b/2><c>"
    assert read.n_files == 4


def test_stops_at_the_limit_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 7)
    (tmp_path / "b").write_bytes(b"y" * 7)
    for limit, is_cut in ((14, False), (13, True), (3, True)):
        monkeypatch.setattr(text, "LIMIT_BYTES", limit)
        read = read_text(tmp_path)
        assert read.data.tobytes() == (b"x" * 7 + b"y" * 7)[:limit]
        assert read.is_cut == is_cut


def test_the_standard_library_is_python_without_tests() -> None:
    library = standard_library()
    assert library.data.size > 1 << 20
    assert b"class JSONDecoder" in library.data.tobytes()
    assert b"class TestCase(unittest.TestCase)" not in library.data.tobytes()


def test_says_that_there_is_no_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="give a text with --data"):
        standard_library()


def test_says_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"there is no .*missing"):
        read_text(tmp_path / "missing")
    with pytest.raises(DataError, match=r"has files in it; .* has none"):
        read_text(tmp_path)
    (tmp_path / "secret").write_text("x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(DataError, match=r"secret: Permission denied"):
        read_text(tmp_path)


def test_makes_an_output_folder_with_its_parents(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_names_an_output_folder_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=rf"{name}: .*: name another with --output"):
        make_folder(tmp_path / name)


def test_a_loss_that_does_not_fall_is_found() -> None:
    assert (
        check_fallen([5.0] * 50 + [3.0] * 50)
        == "Loss fell from 5.000 to 3.000 nats a byte in 100 steps"
    )
    with pytest.raises(VerificationError, match=r"mean of the last 10 is 4\.000: try another"):
        check_fallen([5.0] * 50 + [4.0] * 50)
    with pytest.raises(VerificationError, match="is nan"):
        check_fallen([5.0] * 50 + [math.nan] * 50)


def test_few_steps_are_not_asked_how_far_the_loss_fell() -> None:
    assert "too few steps" in check_fallen([5.0, 5.0])


TINY = gpt.GPTConfig(n_layers=2, d_model=16, n_heads=2, sequence=8)


def test_the_model_does_not_look_ahead() -> None:
    params = gpt.init(jax.random.key(0), TINY)
    tokens = jax.random.randint(jax.random.key(1), (3, 8), 0, 256)
    logits = gpt.forward(params, tokens, TINY)
    for position in range(1, 8):
        changed = tokens.at[:, position:].set(7)
        same = gpt.forward(params, changed, TINY)[:, :position]
        np.testing.assert_allclose(same, logits[:, :position], rtol=1e-5, atol=1e-6)


def test_the_untrained_model_knows_nothing() -> None:
    params = gpt.init(jax.random.key(0), TINY)
    tokens = jnp.arange(16).reshape(2, 8)
    assert float(gpt.loss(params, (tokens, tokens), TINY)) == pytest.approx(math.log(256), abs=0.1)


@pytest.mark.parametrize("field", ["n_layers", "d_model", "n_heads", "sequence"])
def test_a_model_has_no_size_zero(field: str) -> None:
    with pytest.raises(ValueError, match=f"a GPT needs {field} >= 1; got {field}=0"):
        gpt.GPTConfig(**{field: 0})


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="d_model=16 and n_heads=3"):
        gpt.GPTConfig(d_model=16, n_heads=3)


def test_names_a_backend_with_too_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontends.jax.init", lambda n_devices: None)
    monkeypatch.setattr("jax.device_count", lambda: 1)
    job = TrainingJob(TINY, Cluster.preset("two-hosts"), 1, 8, 1e-3, 0, {})
    with pytest.raises(DeviceError, match=r"'two-hosts' needs 8 devices; .* 'cpu' has 1: set"):
        job.start()
