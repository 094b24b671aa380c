"""Names to model directories: each kind of source, the cache, killed and parallel runs, and clear refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny_models import TINY, metadata, write_gguf, write_hf

from draftproof.model import directory, fetch, hf
from draftproof.model.checkpoint import Checkpoint, ModelError
from draftproof.model.directory import prepare
from draftproof.model.gguf_vocab import build_from_gguf
from draftproof.model.tokenizer import Tokenizer


class Graph(ModuleType):
    """Stands in for the graph writer."""

    def __init__(self) -> None:
        super().__init__("draftproof.model.graph")
        self.calls: list[str] = []
        self.error: BaseException | None = None

    def save(self, checkpoint: Checkpoint, precision: str, path: Path) -> bool:
        self.calls.append(precision)
        (path / "openvino_model.bin").write_bytes(checkpoint.tensor("embed").tobytes())
        if self.error:
            raise self.error
        (path / "openvino_model.xml").write_text(precision)
        return precision == "f32"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    import draftproof.model

    fake = Graph()
    monkeypatch.setitem(sys.modules, "draftproof.model.graph", fake)
    monkeypatch.setattr(draftproof.model, "graph", fake, raising=False)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "m.gguf")
    return tmp_path / "m.gguf"


def converted() -> list[str]:
    folder = fetch.cache_dir() / "converted"
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.is_dir() else []


def test_a_gguf_becomes_a_complete_directory(graph: Graph, model: Path) -> None:
    said: list[str] = []
    out = prepare(str(model), "bf16", said.append)
    assert {p.name for p in out.iterdir()} == {
        "openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json", "tokenizer_config.json",
        "generation_config.json",
    }  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    digest = fetch.sha256_file(model)
    assert (config["model_type"], config["vocab_size"], config["max_position_embeddings"]) == ("llama", TINY.vocab, 128)
    made = {"precision": "bf16", "lossless": False, "source": "gguf", "format": 2}
    assert config["draftproof"] == {"fingerprint": digest, **made}
    assert out == fetch.cache_dir() / "converted" / f"{digest[:16]}-bf16-v2"
    assert Tokenizer.from_dir(out).eos_ids == (2, 0)
    assert len(said) == 1
    assert "converting" in said[0]


def test_a_result_is_reused_by_content_and_precision(graph: Graph, model: Path, tmp_path: Path) -> None:
    first = prepare(str(model), "bf16")
    assert prepare(str(model), "bf16") == first
    copy = shutil.copy(model, tmp_path / "copy.gguf")
    assert prepare(str(copy), "bf16") == first
    assert graph.calls == ["bf16"]
    assert prepare(str(model), "int8") != first
    assert graph.calls == ["bf16", "int8"]


def test_a_changed_file_is_converted_again(graph: Graph, model: Path) -> None:
    first = prepare(str(model), "bf16")
    write_gguf(model, extra={"general.name": "new"})
    assert prepare(str(model), "bf16") != first


def test_hashing_is_remembered_until_the_file_changes(
    graph: Graph, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(directory, "sha256_file", lambda path: calls.append(path) or fetch.sha256_file(path))
    digest = directory.remembered_sha256(model)
    assert directory.remembered_sha256(model) == digest
    assert len(calls) == 1
    os.utime(model, ns=(1, 1))
    directory.remembered_sha256(model)
    assert len(calls) == 2
    (fetch.cache_dir() / "fingerprints.json").write_text("{ half")
    assert directory.remembered_sha256(model) == digest
    assert len(calls) == 3


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failed_conversion_leaves_nothing_and_the_next_one_works(
    graph: Graph, model: Path, error: BaseException
) -> None:
    graph.error = error
    with pytest.raises(type(error)):
        prepare(str(model), "bf16")
    assert converted() == []
    graph.error = None
    assert (prepare(str(model), "bf16") / "openvino_model.xml").is_file()
    assert len(converted()) == 1


def test_a_full_disk_is_one_clear_line(graph: Graph, model: Path) -> None:
    graph.error = OSError(28, "No space left on device")
    with pytest.raises(ModelError, match=r"No space left on device.*free some space"):
        prepare(str(model), "bf16")
    assert converted() == []


CHILD = """
import os, signal, sys, time
from pathlib import Path
from types import ModuleType
import draftproof.model
fake = ModuleType("draftproof.model.graph")
def save(checkpoint, precision, path):
    (path / "openvino_model.bin").write_bytes(b"half")
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    with Path(sys.argv[3]).open("a") as log:
        log.write("x")
    (path / "openvino_model.xml").write_text("whole")
fake.save = save
sys.modules["draftproof.model.graph"] = draftproof.model.graph = fake
from draftproof.model.directory import prepare
print(prepare(sys.argv[1], "bf16"))
"""


def _start(model: Path, what: str, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(model), what, str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_conversion_leaves_no_result_and_is_cleaned_up(graph: Graph, model: Path, tmp_path: Path) -> None:
    child = _start(model, "kill", tmp_path / "log")
    child.communicate(timeout=60)
    assert child.returncode == -9
    left = converted()
    assert len(left) == 1
    assert ".tmp-" in left[0]
    out = prepare(str(model), "bf16")
    assert converted() == [out.name]
    assert (out / "openvino_model.bin").read_bytes() != b"half"


def test_two_processes_convert_once(graph: Graph, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    children = [_start(model, "slow", log) for _ in range(2)]
    paths = {child.communicate(timeout=60)[0].strip() for child in children}
    assert paths == {str(fetch.cache_dir() / "converted" / converted()[0])}
    assert log.read_text() == "x"


def test_a_hugging_face_directory_is_converted(graph: Graph, tmp_path: Path) -> None:
    write_hf(tmp_path / "hf")
    build_from_gguf(metadata()).write(tmp_path / "hf")
    out = prepare(str(tmp_path / "hf"), "bf16")
    config = json.loads((out / "config.json").read_text())
    assert config["draftproof"]["fingerprint"] == hf.fingerprint(tmp_path / "hf")
    assert config["draftproof"]["source"] == "hf"
    assert prepare(str(tmp_path / "hf"), "bf16") == out
    assert graph.calls == ["bf16"]


def test_an_openvino_directory_is_used_as_it_is(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("")
    with pytest.raises(ModelError, match=r"openvino_model\.bin is missing"):
        prepare(str(tmp_path), "bf16")
    (tmp_path / "openvino_model.bin").write_text("")
    assert prepare(str(tmp_path), "int8") == tmp_path
    assert graph.calls == []


def test_names_reach_the_default_model_and_the_hub(
    graph: Graph, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "smollm2_gguf", lambda _progress: model)
    assert prepare("smollm2", "bf16") == prepare(str(model), "bf16")
    write_hf(tmp_path / "snapshot")
    build_from_gguf(metadata()).write(tmp_path / "snapshot")
    monkeypatch.setattr(hf, "download", lambda name, _progress: tmp_path / "snapshot" if name == "org/name" else None)
    assert prepare("org/name", "bf16") == prepare(str(tmp_path / "snapshot"), "bf16")


@pytest.mark.parametrize("source", ["nothing", "no/such/path", "./no.gguf", "models/no.gguf", "", "/no/where"])
def test_what_names_nothing_lists_what_is_accepted(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"smollm2.*\.gguf.*safetensors.*openvino_model\.xml.*org/name") as caught:
        prepare(source, "bf16")
    assert "\n" not in str(caught.value)


def test_folders_and_files_of_other_kinds_are_refused(graph: Graph, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"give the path of the file in it, such as .*m\.gguf"):
        prepare(str(tmp_path), "bf16")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no model that can be read"):
        prepare(str(tmp_path / "empty"), "bf16")
    (tmp_path / "m.bin").write_text("")
    with pytest.raises(ModelError, match=r"is not a \.gguf file"):
        prepare(str(tmp_path / "m.bin"), "bf16")
    with pytest.raises(ModelError, match="precision"):
        prepare(str(model), "../bf16")
    assert graph.calls == []


def test_a_tokenizer_that_cannot_be_used_is_refused_before_converting(graph: Graph, model: Path) -> None:
    write_gguf(model, extra={"tokenizer.ggml.merges": ["zz zz"]})
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        prepare(str(model), "bf16")
    assert graph.calls == []
