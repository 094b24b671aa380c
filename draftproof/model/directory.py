"""Turns what the user names (a file, a folder, a name) into an OpenVINO model directory, once.

Knows where each kind of source is read and how results are cached. Does not know weights, graphs or tokenizers: it
hands a Checkpoint to the graph writer and files to disk. A result appears in the cache complete or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from draftproof.model import fetch, gguf, hf
from draftproof.model.checkpoint import Checkpoint, ModelError
from draftproof.model.fetch import Progress, cache_dir, locked, remove_leftovers, sha256_file, silent
from draftproof.model.tokenizer import Tokenizer, TokenizerFiles

TORCH = "torch:"  # in front of a model's name: run it on PyTorch
FORMAT = 2  # raise it when a converted directory of before must not be used any more
ACCEPTED = (
    "give smollm2, the path of a .gguf file, a Hugging Face directory (config.json and *.safetensors), "
    "an OpenVINO directory (openvino_model.xml) or a Hugging Face name (org/name)"
)

Read = Callable[[Path, Callable[[Path], str]], tuple[Checkpoint, TokenizerFiles]]


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine, as its weight file has it."""

    path: Path
    kind: str  # "gguf" or "hf"

    def fingerprint(self) -> str:
        return remembered_sha256(self.path) if self.kind == "gguf" else hf.fingerprint(self.path, remembered_sha256)

    def read(self) -> tuple[Checkpoint, TokenizerFiles]:
        reader: Read = gguf.read if self.kind == "gguf" else hf.read
        return reader(self.path, remembered_sha256)


def prepare(source: str, precision: str, progress: Progress = silent) -> Path:
    """The OpenVINO model directory of `source`, converted into the cache unless it is one or is there already.

    An OpenVINO directory of the user's is returned as it is: `precision` says nothing about it.
    """
    found = locate(source, progress)
    if isinstance(found, Path):
        return found
    if not re.fullmatch(r"[a-z0-9_]+", precision):
        raise ModelError(f"precision {precision!r} is not a precision; give one of those that --help lists")
    target = _converted(found, precision)
    if target.is_dir():
        return target
    with locked(target, progress):
        if not target.is_dir():
            remove_leftovers(target)
            progress(f"converting {source} to {precision} (once)")
            _convert(found, precision, target)
    return target


def _converted(source: Source, precision: str) -> Path:
    return cache_dir() / "converted" / f"{source.fingerprint()[:16]}-{precision}-v{FORMAT}"


def in_four_bits(source: str, progress: Progress = silent) -> bool:
    """Whether the file of `source` holds weights of 4 bits that int4 stores without loss. Converts it to find out."""
    found = locate(source, progress)
    if isinstance(found, Path) or found.kind != "gguf":
        return False
    if not _converted(found, "int4").is_dir() and not gguf.in_four_bits(found.path):
        return False
    made = json.loads((prepare(source, "int4", progress) / "config.json").read_text(encoding="utf-8"))
    return bool(made["draftproof"]["lossless"])


def checkpoint(source: str, progress: Progress = silent) -> Checkpoint:
    """The weights of `source` as its file has them; torch:NAME has those of NAME."""
    return original(source.removeprefix(TORCH), progress)[0]


def original(source: str, progress: Progress = silent) -> tuple[Checkpoint, TokenizerFiles]:
    """Weights and tokenizer of `source` as its files have them."""
    found = locate(source, progress)
    if isinstance(found, Path):
        raise ModelError(f"{source} is a ready OpenVINO directory: its original weights are not in it")
    return found.read()


def locate(source: str, progress: Progress) -> Source | Path:
    """What `source` names: something to convert, or an OpenVINO directory that is ready."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _directory(path.absolute())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{source} is not a .gguf file; {ACCEPTED}")
        return Source(path.absolute(), "gguf")
    if source == "smollm2":
        return Source(fetch.smollm2_gguf(progress), "gguf")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source) and path.suffix.lower() != ".gguf":
        return _directory(hf.download(source, progress))
    raise ModelError(f"there is no model {source!r}; {ACCEPTED}")


def _directory(path: Path) -> Source | Path:
    if (path / "openvino_model.xml").is_file():
        if not (path / "openvino_model.bin").is_file():
            raise ModelError(f"{path}: openvino_model.bin is missing beside openvino_model.xml; copy both")
        return path
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return Source(path, "hf")
    files = sorted(path.glob("*.gguf"))
    if files:
        raise ModelError(f"{path} is a directory; give the path of the file in it, such as {files[0]}")
    raise ModelError(f"{path} holds no model that can be read; {ACCEPTED}")


def _convert(source: Source, precision: str, target: Path) -> None:
    """Writes a temporary sibling of `target` and renames it, with `target`'s lock held."""
    from draftproof.model import graph

    checkpoint, files = source.read()
    Tokenizer(files, str(source.path))  # refuses what could not be loaded afterwards
    work: Path | None = None
    try:
        work = Path(mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
        lossless = graph.save(checkpoint, precision, work)
        files.write(work)
        made = {"precision": precision, "lossless": lossless, "source": source.kind, "format": FORMAT}
        _write_config(checkpoint, files, made, work / "config.json")
        work.rename(target)
    except OSError as error:
        message = f"cannot store the converted model in {target.parent} ({error.strerror or error})"
        raise ModelError(f"{message}; free some space or set DRAFTPROOF_CACHE to another folder") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def _write_config(checkpoint: Checkpoint, files: TokenizerFiles, made: Mapping[str, object], path: Path) -> None:
    a = checkpoint.architecture
    config = {
        "model_type": a.family,
        "vocab_size": a.vocab,
        "max_position_embeddings": a.context,
        "hidden_size": a.width,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "eos_token_id": files.generation.get("eos_token_id"),
        "draftproof": {"fingerprint": checkpoint.fingerprint, **made},
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def remembered_sha256(path: Path) -> str:
    """SHA-256 of a file, remembered for as long as its size and modification time stay the same."""
    book, status = cache_dir() / "fingerprints.json", path.stat()
    key, stamp = str(path.resolve()), [status.st_size, status.st_mtime_ns]
    known = _read_book(book)
    entry = known.get(key)
    if isinstance(entry, list) and entry[:2] == stamp and len(entry) == 3:
        return str(entry[2])
    digest = sha256_file(path)
    with locked(book):
        text = json.dumps({**_read_book(book), key: [*stamp, digest]}, indent=1)
        part = book.with_name(book.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(book)
    return digest


def _read_book(book: Path) -> dict[str, object]:
    try:
        known = json.loads(book.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
