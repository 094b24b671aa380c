"""The files of a report folder, and whether a folder may be used. Knows no content."""

from __future__ import annotations

from pathlib import Path

from draftproof.types import RequestError


class Folder:
    """Names of files. The stores and the bench files keep what is done; reports are written anew from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self.index = path / "manifest.json", path / "index.html"
        self.store, self.verify_json, self.verify_html = (
            path / name for name in ("verify.jsonl", "verify.json", "verify.html")
        )
        self.bench, self.bench_json, self.bench_html = (
            path / name for name in ("bench.jsonl", "bench.json", "bench.html")
        )
        self.lossy_store, self.lossy_bench, self.lossy = (
            path / name for name in ("lossy-verify.jsonl", "lossy-bench.jsonl", "lossy.html")
        )

    def write(self, path: Path, text: str) -> None:
        """
        Raises:
            RequestError: it cannot be written.
        """
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error.strerror or error}") from error


def opened(path: Path) -> Folder:
    """The folder, made if it is not there.

    Raises:
        RequestError: it is no folder, cannot be made, or holds something else than an acceptance.
    """
    folder = Folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        foreign = not folder.manifest.exists() and any(path.iterdir())
    except OSError as error:
        raise RequestError(f"--out {path} cannot be used: {error.strerror or error}") from error
    if foreign:
        raise RequestError(f"--out {path} is not empty and holds no manifest.json: give a folder of its own")
    return folder
