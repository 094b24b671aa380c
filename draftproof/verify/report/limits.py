"""What no run of the suite shows, a sentence each. `docs/what_verify_cannot_see.md` says more under the same heads."""

LIMITS: tuple[tuple[str, str], ...] = (
    ("Rare faults", "A fault that moves the law by less than the detectable TV of its check passes unseen."),
    (
        "Other prompts and settings",
        "Laws were tested at the prompts, lengths and parameters of the checks only.",
    ),
    ("Small worlds", "Exact laws come from tiny models: what needs a large vocabulary or a long context stays out."),
    ("Hardware and load", "A race or a kernel that shows only on another device, driver or load was not there to see."),
    ("Timing", "Only tokens, text and counts are read: what response times give away is not looked at."),
    (
        "Rules against numerics",
        "A target that computes wrong logits is sampled faithfully and may pass.",
    ),
    (
        "Drafting on unseen state",
        "Draft lengths chosen by a state that the suite never reaches can bias unseen.",
    ),
    ("Mistakes shared with the oracle", "If the oracle and the engine misread a definition alike, they agree."),
    ("Quality and speed", "A useless draft model is exact. Acceptance and speed are not judged here."),
    ("What the engine declares", "Abilities that it does not declare are not tested; counts are taken at its word."),
)
