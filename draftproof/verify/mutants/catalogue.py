"""The planted faults, each with the check that must see it, and the engines that are right or cannot be tested.

The number of a fault is that of the catalogue of faults seen in released decoders (`docs/invariants.md`).
"""

from __future__ import annotations

from draftproof.verify.contract import Ability, Mutant
from draftproof.verify.mutants import faulty_batches as batches
from draftproof.verify.mutants import faulty_drafts as drafts
from draftproof.verify.mutants import faulty_ends as ends
from draftproof.verify.mutants import faulty_laws as laws
from draftproof.verify.mutants import faulty_rules as rules
from draftproof.verify.mutants import faulty_trees as trees
from draftproof.verify.mutants.build import Variant, planted, variant
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.rules import Rules

_TEXT_ONLY = frozenset({Ability.PLAIN, Ability.BATCH})


def _rule(name: str, what: str, check: str, parts: type[Rules], *names: str) -> Mutant:
    return planted(name, what, check, Honest, *names, parts=parts)


def _counted(name: str, what: str, kind: type[Honest]) -> Mutant:
    return planted(name, what, "acceptance/counts", kind, world="close")


_RULES = (
    _rule("argmax draft", "1: argmax draft, softmax stated", "rules/joint", rules.ArgmaxDraft, "token"),
    _rule("argmax draft, block", "1: the same under the block rule", "rules/joint", rules.ArgmaxDraft, "block"),
    _rule("top-two draft", "2: drawn from the top two, raw q stated", "rules/joint", rules.TopTwoDraft, "token"),
    _rule("coarse draft", "3: drawn through bfloat16 logits", "rules/joint", rules.CoarseDraft, "token"),
    _rule("hot draft", "5: drawn at another temperature", "rules/joint", rules.HotDraft, "token"),
    _rule("hot draft, block", "5: the same under the block rule", "rules/joint", rules.HotDraft, "block"),
    _rule("uncoupled draft", "6: drawn apart from the race", "rules/acceptance", rules.UncoupledDraft, "coupled"),
    _rule("worse draft", "6: sampled rule, top two drafted", "rules/acceptance", rules.SampledTopDraft, "sampled"),
    _rule("accepts at zero", "7: u q <= p, so p = 0 stands at u = 0", "rules/boundary", rules.AcceptsZero, "token"),
    _rule("residual by draft noise", "8: reuses the draft's noise", "rules/joint", rules.NextFromDraftNoise, "token"),
    _rule("residual by accept noise", "9: reuses its uniform", "rules/joint", rules.NextFromAcceptUniform, "token"),
    _rule("one uniform a block", "11: all tests share one", "rules/joint", rules.OneUniformABlock, "token"),
    _rule("one uniform, block rule", "11: all tests share one", "rules/joint", rules.OneUniformABlock, "block"),
    _rule("first failure", "12: block rule stops at the first failed test", "rules/joint", rules.FirstFailure, "block"),
    _rule("own residual", "12: block rule, token residual", "rules/joint", rules.TokenResidualInBlock, "block"),
    _rule("uncapped", "12: block rule whose ratio may pass 1", "rules/joint", rules.Uncapped, "block"),
    _rule("single ratios", "12: ratios not multiplied up", "rules/joint", rules.BlockForgetsEarlierRatios, "block"),
    _rule("softmax residual", "13: softmax of (p - q)+", "rules/joint", rules.SoftmaxResidual, "token"),
    _rule("absolute residual", "13: |p - q|", "rules/joint", rules.AbsoluteResidual, "token"),
    _rule("unnormalised residual", "13: (p - q)+ as it is", "rules/joint", rules.UnnormalisedResidual, "token"),
    _rule("target as residual", "13: p itself", "rules/joint", rules.TargetAsResidual, "token"),
    _rule("reversed residual", "13: (q - p)+", "rules/joint", rules.ReversedResidual, "token"),
    _rule("strikes out", "14: the target's row is written to", "rules/pure", rules.StrikesOut, "token"),
    _rule("asks twice", "one uniform asked for twice", "rules/pure", rules.AsksTwice, "token", "block"),
    _rule("bonus from draft", "15: bonus from q", "rules/joint", rules.BonusFromDraft, "token"),
    _rule("bonus from last row", "15: bonus from p_k", "rules/joint", rules.BonusFromLastRow, "token", "block"),
    _rule("eager residual", "17: 0/0 where p = q", "rules/boundary", rules.EagerResidual, "token"),
    _rule("half precision", "18: q underflows to 0", "rules/boundary", rules.HalfPrecision, "token"),
    _rule("NaN is token zero", "19: NaN in the draft's row", "rules/boundary", rules.NanIsTokenZero, "token"),
    _rule("3 % more", "accepts 3 % too often", "rules/joint", rules.ThreePercentMore, "token"),
    _rule("3 % more, block", "block tests 3 % too likely", "rules/joint", rules.ThreePercentMoreBlock, "block"),
    _rule("3 % less", "right output, 3 % fewer accepted", "rules/acceptance", rules.ThreePercentLess, "token"),
    _rule("redraws", "sampled rule redraws after a mismatch", "rules/joint", rules.RedrawsAfterMismatch, "sampled"),
    _rule("races again", "coupled rule redraws after a mismatch", "rules/joint", rules.RacesAgain, "coupled"),
    _rule("siblings by target", "trees: all judged by p", "rules/joint", trees.SiblingsJudgedByTarget, "token"),
    _rule("siblings unnormalised", "trees: (r - q)+ as it is", "rules/joint", trees.SiblingsLeaveUnnormalised, "token"),
    _rule("siblings share noise", "trees: one uniform for all", "rules/joint", trees.SiblingsShareUniform, "token"),
    _rule("one sample a path", "trees: not one a node", "rules/joint", trees.OneSampleAPath, "sampled"),
)

_DRAFTS = (
    planted("made-up law", "4: n-gram draft with a made-up law", "law/joint", drafts.MadeUpLaw),
    planted("heat forgotten", "5: drawn at temperature 1, stated at another", "law/filters", drafts.HeatForgotten),
    planted("discards", "16: an unlikely draft token is thrown away", "law/joint", drafts.DiscardsUnlikely),
    planted("draft noise once", "10: draft noise of the first step", "law/joint", drafts.DraftNoiseOfFirstStep),
    planted("noise once", "10: all noise of the first step", "law/joint", drafts.NoiseOfFirstStep),
    planted("row after", "15: row i + 1 judges draft i", "law/joint", drafts.RowAfter),
    planted("bonus row before", "15: bonus from the row before", "law/joint", drafts.BonusRowBefore),
    planted("next one's rows", "15: rows of the next sequence", "law/joint", drafts.RowsOfNextSequence),
    planted("rows as if even", "15: ragged rows cut evenly", "bitwise/batch", drafts.RowsAsIfEven, "coupled", "token"),
    planted("keeps rejected", "22: the rejected token stays in the cache", "law/joint", drafts.KeepsRejected),
    planted("loses word", "22: a word is dropped, its continuation kept", "law/joint", drafts.LosesWord),
    _counted("stale draft cache", "23: lacks the last accepted token", drafts.StaleDraftCache),
    _counted("draft keeps all", "the draft's cache never rolls back", drafts.DraftNeverRollsBack),
    _counted("mapped too late", "6: draft ids in another order", drafts.MappedTooLate),
    _counted("other heat", "draft at another temperature, and says so", drafts.HotDraftLaw),
    _counted("older text", "the draft is one position behind", drafts.DraftSeesOlderText),
    _counted("rejects one in ten", "right output, fewer accepted", drafts.RejectsOneInTen),
    planted("older rows far on", "the row before, late in a text", "stream/evidence", drafts.PreviousRowFarOn),
    planted("colder far on", "sharper, late in a text", "stream/evidence", drafts.ColdFarOn),
    planted("draft far on", "drafts always stand, late in a text", "stream/evidence", drafts.DraftAlwaysStandsFarOn),
)

_LAWS = (
    planted("frozen penalty", "20: penalties stand still in a block", "law/penalties", laws.FrozenPenalty),
    planted("rejected counts", "21: rejected drafts are penalised", "law/penalties", laws.RejectedCounts),
    planted("presence of prompt", "presence counts the prompt", "law/penalties", laws.PresenceOfPrompt),
    planted("repetition divides", "negative logits are divided", "law/penalties", laws.RepetitionDivides),
    planted("top-k + 1", "one token too many", "law/filters", laws.TopKOneTooMany),
    planted("short top-p", "the token that reaches top-p is lost", "law/filters", laws.TopPTooShort),
    planted("absolute min-p", "min-p not relative to the largest", "law/filters", laws.AbsoluteMinP),
    planted("unfiltered behind drafts", "5: filters on the first row only", "law/filters", laws.UnfilteredBonus),
    planted("frozen min-tokens", "the mask stands still in a block", "law/masks", laws.FrozenMinTokens),
    planted("mask on first row", "min-tokens on the first row only", "law/masks", laws.MaskOnFirstRow),
    planted("bias on first row", "logit bias on the first row only", "law/masks", laws.BiasOnFirstRow),
    planted("stops not drafted", "stops never drafted, q not told", "law/ends", drafts.MasksStopsSilently),
    planted("no stop behind drafts", "stops masked behind the first row", "law/ends", laws.BonusNeverStops),
)

_BATCHES = (
    planted("noise of step", "samples keyed by step", "bitwise/speculation", batches.NoiseOfStep, "sampled", "coupled"),
    planted("noise by k", "noise keyed by k", "bitwise/speculation", batches.NoiseByDraftLength, "coupled"),
    planted("noise of first", "11: one noise for a batch", "bitwise/batch", batches.NoiseOfFirstInBatch, "coupled"),
    planted("noise of seat", "33: noise by place", "bitwise/batch", batches.NoiseOfSeat, "token", "coupled"),
    planted("seed by history", "37: seed and history mixed", "bitwise/order", batches.SeedByHistory, "coupled"),
    planted("one seed", "37: unseeded requests are alike", "bitwise/order", batches.OneSeedForUnseeded, "token"),
    planted("prefix by first", "36: pages found by first token", "bitwise/order", batches.PrefixByFirstToken),
    planted("prefix of all", "36: a warm prompt ends twice", "bitwise/order", batches.PrefixOfWholePrompt),
    planted("prefix off by one", "36: a page hashed too early", "bitwise/order", batches.PrefixOffByOne),
    planted("cancel moves caches", "35: another's cache is wrong then", "bitwise/abort", batches.CancelMovesCaches),
    planted("cancel takes token", "34: another's token is lost", "bitwise/abort", batches.CancelTakesToken),
    planted("cancelled goes on", "34: a token that was not drawn", "bitwise/abort", batches.CancelledTextGoesOn),
    planted("preempt loses token", "33: the newest token is lost", "bitwise/preempt", batches.PreemptLosesToken),
    planted("preempt repeats token", "33: it is emitted again", "bitwise/preempt", batches.PreemptRepeatsToken),
    planted("preempt other noise", "33: noise begins anew", "bitwise/preempt", batches.PreemptRepeatsNoise, "coupled"),
    planted("preempt keeps cache", "33: pages with another's keys", "bitwise/preempt", batches.PreemptKeepsCache),
)

_ENDS = (
    planted("stops at last only", "27: a stop in mid-block is passed", "ends/pairs", ends.StopsAtLastOnly),
    planted("limit first", "28: the limit is tested before the stop", "ends/pairs", ends.LimitFirst),
    planted("limit between steps", "30: a block runs over the limit", "ends/pairs", ends.LimitBetweenSteps),
    planted("strings within steps", "29: a stop string over two steps", "ends/pairs", ends.StringsWithinSteps),
    planted("strings behind first", "29: one at the start of a block", "ends/pairs", ends.StringsBehindFirst),
    planted("keeps stop token", "the stop token is in the output", "ends/pairs", ends.KeepsStopToken),
    planted("keeps behind stop", "31: tokens behind a stop string", "ends/pairs", ends.KeepsBehindStopString),
    planted("stops one late", "a stop right at min-tokens is passed", "ends/pairs", ends.StopsOneLate),
    planted(
        "context between steps",
        "a block runs over the context",
        "ends/context",
        ends.ContextBetweenSteps,
        world="close",
    ),
    planted("context in blocks", "ends where no block fits", "ends/context", ends.ContextWholeBlocks, world="close"),
    planted("logprobs behind stop", "31: one log-probability too many", "ends/books", ends.LogprobsBehindStop),
    planted("logprobs of block start", "of another row", "ends/books", ends.LogprobsOfBlockStart),
    planted("usage of blocks", "usage counts what was cut", "ends/books", ends.UsageCountsBlocks),
    planted("counts behind stop", "38: accepted behind a stop", "ends/books", ends.CountsBehindStop),
    planted("counts behind rejection", "38: [T, F, T, T] is 3", "ends/books", ends.CountsBehindRejection),
    planted("sum forgets", "mixed steps are not in the sum", "ends/books", ends.SumForgetsMixedSteps),
    planted("more than proposed", "34: the bonus is counted", "ends/books", ends.MoreAcceptedThanProposed),
    planted("streams last", "42: a step's last token only", "ends/streamed", ends.StreamsLastToken),
    planted("stream loses tail", "42: held-back text is lost", "ends/streamed", ends.StreamLosesTail),
    planted("stream holds nothing", "42: streams what is taken back", "ends/streamed", ends.StreamHoldsNothing),
    planted("stream draws anew", "streamed with another seed", "ends/streamed", ends.StreamDrawsAnew),
)

_BLACK_BOXES = (
    planted(
        "black box, argmax draft", "1, text only", "blackbox/two-sample", parts=rules.ArgmaxDraft, can=_TEXT_ONLY
    ),
    planted(
        "black box, row after", "15, text only", "blackbox/two-sample", drafts.RowAfter, can=_TEXT_ONLY
    ),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (*_RULES, *_DRAFTS, *_LAWS, *_BATCHES, *_ENDS, *_BLACK_BOXES)

HONEST: tuple[Variant, ...] = (
    variant("honest", "all rules, drafts of a model"),
    *(variant(f"honest, {rule}", f"{rule} rule", rule) for rule in ("token", "block", "sampled", "coupled")),
    *(variant(f"honest, {rule}, looked up", "point masses", rule, looks_up=True) for rule in Honest.rules),
    variant("honest, short last draft", "drafts no more than can be emitted", shortens=True),
    variant(
        "honest, case 43",
        "argmax drafts, the compared sample is emitted",
        "sampled",
        parts=rules.ArgmaxSampledDraft,
        drafts=False,
    ),
    variant("honest, case 44", "two deterministic candidates a position, q = 1", "list"),
)

SILENT: tuple[Variant, ...] = (variant("never drafts", "40: k is ignored silently", kind=batches.NeverDrafts),)

BROKEN: tuple[Variant, ...] = (
    variant("dies", "raises at once", kind=batches.Dies),
    variant("dies late", "raises in mid-run", kind=batches.DiesLate),
    variant("forgets samples", "returns fewer samples than jobs", kind=batches.ForgetsSamples),
    variant("out of range", "returns a token that does not exist", kind=batches.OutOfRange),
    variant("returns errors", "every sample is an error", kind=batches.ReturnsErrors),
    variant("returns nothing", "every sample is empty", kind=batches.ReturnsNothing),
)
