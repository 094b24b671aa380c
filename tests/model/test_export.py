"""A model written as a Hugging Face directory is read back with the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, write_gguf

from draftproof.model import export, gguf, hf
from draftproof.model.checkpoint import ModelError, shapes


def test_weights_sizes_and_tokenizer_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", TINY)
    wanted, files = gguf.read(tmp_path / "tiny.gguf")
    path = export.hugging_face(str(tmp_path / "tiny.gguf"))
    found, again = hf.read(path)
    assert found.architecture == wanted.architecture
    for name in shapes(wanted.architecture):
        assert np.array_equal(found.tensor(name), wanted.tensor(name)), name
    assert again.tokenizer == files.tokenizer
    assert export.hugging_face(str(tmp_path / "tiny.gguf")) == path
    assert export.hugging_face(str(path)) == path
    assert not list(path.parent.glob("*.tmp-*"))


def test_what_its_configuration_cannot_say_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", TINY)
    checkpoint, files = gguf.read(tmp_path / "tiny.gguf")
    scaled = replace(checkpoint.architecture, rope_factors=(1.0,) * (TINY.head_dim // 2))
    with pytest.raises(ModelError, match="scaled rotary frequencies"):
        export.write_hf(replace(checkpoint, architecture=scaled), files, tmp_path)
