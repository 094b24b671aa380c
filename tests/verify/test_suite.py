"""What `draftproof verify` checks by default, and what it refuses to check."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.verify import suite
from draftproof.verify.plan import VerifyError


def test_a_toy_has_two_kinds_of_draft_and_refuses_others(tmp_path: Path) -> None:
    names = [leg.name for leg in suite.legs(suite.Options(folder=tmp_path))]
    assert names == ["toy spread, model draft", "toy agreeing, model draft", "toy spread, ngram draft"]
    with pytest.raises(VerifyError, match="no draft 'suffix': give one of model, ngram"):
        suite.legs(suite.Options(drafts=("suffix",), folder=tmp_path))
