"""Decoders with planted faults, and honest ones: what shows that the checks can fail, and that they need not."""

from draftproof.verify.mutants.build import Variant
from draftproof.verify.mutants.catalogue import BROKEN, HONEST, MUTANTS, SILENT
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.worlds import WORLDS

__all__ = ["BROKEN", "HONEST", "MUTANTS", "SILENT", "WORLDS", "Honest", "Variant"]
