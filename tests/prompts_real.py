"""Twenty prompts of many kinds for tests on the default model."""

PROMPTS = (
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "List five fruits and their colours.",
    "Translate into French: I would like a cup of tea.",
    "What is 12 times 13? Show your steps.",
    "Write a Python function that reverses a list.",
    "Summarise: Bees collect nectar, turn it into honey, and store it in the comb for the winter.",
    "Repeat three times: a rose is a rose.",
    "Who wrote Hamlet, and when?",
    "Explain photosynthesis to a child of six.",
    "Give me a recipe for pancakes.",
    "Count from one to twenty in words.",
    "Write a polite letter that asks for a refund.",
    "Extract the names: Anna met Boris and Clara in Dresden.",
    "Continue: once upon a time there was a fox who",
    "What are the planets of the solar system?",
    "Write a SQL query that counts the rows of a table.",
    "Describe a rainy day in four sentences.",
    "Is a tomato a fruit or a vegetable?",
    "Repeat this text: the cat sat on the mat, the cat sat on the mat, the cat sat on the mat.",
)
