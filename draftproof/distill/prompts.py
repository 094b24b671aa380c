"""What the target is asked while data are collected: its own user turns, and templates in many kinds.

Plain text and a seeded choice. Knows no model, no tokenizer and no engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

TOPICS = (
    "volcanoes", "the history of bread", "bicycles", "honey bees", "the Roman Empire", "solar panels", "chess openings",
    "city parks", "dolphins", "sleep", "electric cars", "jazz music", "the water cycle", "libraries", "vaccines",
    "mountain climbing", "coffee", "black holes", "gardening", "the printing press", "penguins", "inflation", "yoga",
    "train travel", "the human heart", "mobile phones", "wildfires", "cheese", "the Olympic Games", "sailing ships",
    "computer viruses", "rainforests", "fashion", "the moon landing", "first aid", "bridges", "dinosaurs", "elections",
    "photography", "ancient Egypt", "robots", "the Great Wall of China", "football", "recycling", "Shakespeare",
    "earthquakes", "chocolate", "online shopping", "deserts", "the French Revolution", "dogs", "wind power",
    "job interviews", "astronomy", "rivers", "public health", "video games", "marriage customs", "airports", "museums",
)  # fmt: skip
LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "English")
THINGS = ("a list", "a string", "a binary tree", "a CSV file", "a dictionary", "a matrix", "a queue", "a date")
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hiro", "Ines", "Jonas", "Kofi", "Lena")

ASKING = {
    "chat": (
        "Tell me about {topic}.",
        "Why are {topic} important?",
        "Give me five facts about {topic}.",
        "Explain {topic} to a child of ten.",
        "What should a beginner know about {topic}?",
        "Who was involved in the story of {topic}, and when did it happen?",
        "What are the advantages and disadvantages of {topic}?",
        "Pretend to be an expert on {topic} and answer: what do people get wrong most often?",
    ),
    "writing": (
        "Write a short story about {topic}.",
        "Write a poem about {topic}.",
        "Draft a polite email to {name} that invites a colleague to a talk about {topic}.",
        "Write a blog post about {topic} with a catchy title.",
        "Describe a scene with {topic}, using vivid words.",
        "Write a dialogue between {name} and {other} about {topic}.",
    ),
    "code": (
        "Write a Python function that sorts {thing}.",
        "Write a JavaScript function that checks whether {thing} is empty.",
        "How do I read {thing} in Python? Show an example.",
        "Write a SQL query for a table about {topic}.",
        "Find the largest element of {thing} in C++. Explain the code.",
    ),
    "maths": (
        "{name} has {a} apples and buys {b} more. {other} takes {c} of them. How many are left?",
        "A shop sells {a} tickets at {c} dollars each. How much money does it take? Show your steps.",
        "A train travels {a} miles in {c} hours. How far does it go in {b} hours?",
        "What is {a} plus {b} minus {c}?",
        "{name} reads {c} pages a day. How many days does a book of {b} pages take?",
    ),
    "translation": (
        "Translate to {language}: {name} went to the market and bought {a} oranges.",
        "Translate to {language}: I would like to learn more about {topic}.",
        "How do you say \"where is the museum of {topic}\" in {language}?",
    ),
    "facts": (
        "where does the word for {topic} come from",
        "when did people first write about {topic}",
        "what is the most famous example of {topic}",
        "who is known for work on {topic}",
    ),
}  # fmt: skip
READING = {
    "summary": ("Summarize: {passage}", "{passage}\n\nSummarize the text above in one sentence."),
    "extraction": (
        "List all names, places and numbers in this text.\n\n{passage}",
        "{passage}\n\nQuestion: what is the main point of the text?",
    ),
    "translation": ("Translate to {language}: {passage}",),
    "retrieval": (
        "Answer the question by the following paragraphs.\n\n{passage}\n\nQuestion: what is said about {topic}?",
        "Passage 1: {passage}\n\nPassage 2: {more}\n\nUse the passages to answer: how do they differ?",
    ),
}
ARTICLES = (
    "Write an encyclopedia article about {topic}.",
    "Write a news report about {topic}.",
    "Write a paragraph of a textbook about {topic}.",
)


def fill(form: str, rng: random.Random, passages: Sequence[str] = ("",)) -> str:
    """The form with every blank filled by chance."""
    name, other = rng.sample(NAMES, 2)
    return form.format(
        topic=rng.choice(TOPICS),
        language=rng.choice(LANGUAGES),
        thing=rng.choice(THINGS),
        name=name,
        other=other,
        a=rng.randrange(12, 90),
        b=rng.randrange(100, 400),
        c=rng.randrange(2, 12),
        passage=rng.choice(passages),
        more=rng.choice(passages),
    )


def asking(rng: random.Random) -> str:
    """A prompt that stands alone; all kinds are equally likely."""
    return fill(rng.choice(ASKING[rng.choice(tuple(ASKING))]), rng)


def reading(rng: random.Random, passages: Sequence[str]) -> str:
    """A prompt about one of the passages, or two."""
    return fill(rng.choice(READING[rng.choice(tuple(READING))]), rng, passages)


def article(rng: random.Random) -> str:
    return fill(rng.choice(ARTICLES), rng)
