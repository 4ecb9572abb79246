"""Twenty-four prompts that differ in every way: 1 to 1,500 tokens, code, accents, emoji, CJK."""

from __future__ import annotations

SYSTEM = "You are a patient teacher. Answer in short sentences, with an example where one helps. "
STORY = (
    "The harbour master counted the boats twice, once at dusk and once by lamplight, and wrote both numbers down. "
    "When they differed he walked the pier again, slowly, reading each name aloud, because a boat that is missing "
    "in the evening is seldom found in the morning. "
)

TEXTS = [
    "Hi",
    "The capital of France is",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY",
    "Le château était déjà fermé quand nous sommes arrivés à l'orée du bois, là où",
    "Die Straße führte über die Brücke, und",
    "El niño pequeño comió una piña. ¿Por qué",
    "🎉🎂 Happy birthday! 🥳 The best thing about",
    "日本の首都は東京です。人口は",
    "北京是中国的首都。它的历史",
    "Привет, как дела? Сегодня",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "<html>\n  <body>\n    <h1>Title</h1>\n    <p>",
    "If x + 3 = 10, then x =",
    SYSTEM + "What is a prime number?",
    SYSTEM + "Why is the sky blue?",
    SYSTEM + "What is a prime number, and why is 1 not one?",
    "    indented\n\n\n\ttabs and   spaces   ",
    STORY * 2,
    STORY * 6,
    STORY * 12 + "In short,",
]

LONGEST = 1500


def prompts(encode) -> list[list[int]]:
    """All prompts as token ids; the first has one token, the last 1,500."""
    ids = [encode(text) for text in TEXTS]
    ids[0] = ids[0][:1]
    return [*ids, encode(STORY * 40)[:LONGEST]]
