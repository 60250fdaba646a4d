"""What is said in the demo: ships' logs, long enough to be worth caching, and questions about them."""

from random import Random

Messages = list[dict[str, str]]

SHIP = "Petrel"
"""The ship of the conversation that the demo follows."""
QUESTIONS = (
    "Which cargo does the log name most often? Answer in one sentence.",
    "And which harbour?",
    "What was the weather like on most days?",
    "Name one harbour where a voyage ended.",
    "Sum up the log in one short sentence.",
)
"""One question for each turn."""
_OTHERS = (
    "Heron",
    "Curlew",
    "Tern",
    "Gannet",
    "Plover",
    "Skua",
    "Dunlin",
    "Avocet",
    "Whimbrel",
    "Shearwater",
)
_HARBOURS = ("Bergen", "Lisbon", "Hull", "Riga", "Cadiz", "Ostend", "Genoa", "Leith", "Nantes", "Gdansk")
_CARGOES = ("salt", "timber", "wool", "cork", "tea", "copper", "olives", "tar", "paper", "oats")
_WEATHERS = ("a fresh breeze", "thick fog", "light airs", "a full gale", "steady rain", "bright sun")


def other_ship(number: int) -> str:
    """The name of another ship; no two numbers give the same."""
    name, again = _OTHERS[number % len(_OTHERS)], number // len(_OTHERS)
    return f"{name} {again + 1}" if again else name


def log_lines(ship: str, count: int) -> list[str]:
    """`count` lines of the log of `ship`, always the same ones."""
    random = Random(ship)
    return [
        f"Day {day}: {random.randrange(20, 400)} tons of {random.choice(_CARGOES)} from {random.choice(_HARBOURS)} "
        f"to {random.choice(_HARBOURS)} in {random.choice(_WEATHERS)}."
        for day in range(1, count + 1)
    ]


def opening(ship: str, lines: int, question: str) -> Messages:
    """The first messages of a conversation about the log of `ship`.

    The name comes first of all, so that no two conversations share a page.
    """
    log = "\n".join(log_lines(ship, lines))
    return [
        {"role": "system", "content": f"{ship}: you keep the log of this ship."},
        {"role": "user", "content": f"The log of the {ship}:\n{log}\n\n{question}"},
    ]


def continued(messages: Messages, answer: str, question: str) -> Messages:
    """The conversation one turn later."""
    return [
        *messages,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    ]
