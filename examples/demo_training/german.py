"""Answers of the built-in model in German: most of its sentences follow a few patterns."""

from __future__ import annotations

import re
from collections.abc import Callable

from seesay.demo.vocabulary import DIRECTIONS, PLACES

_NOUNS = {
    "circle": ("m", "Kreis", "Kreise"),
    "square": ("n", "Quadrat", "Quadrate"),
    "triangle": ("n", "Dreieck", "Dreiecke"),
    "diamond": ("f", "Raute", "Rauten"),
    "star": ("m", "Stern", "Sterne"),
    "heart": ("n", "Herz", "Herzen"),
    "cross": ("n", "Kreuz", "Kreuze"),
    "ring": ("m", "Ring", "Ringe"),
    "shape": ("f", "Form", "Formen"),
    "bar": ("m", "Balken", "Balken"),
}
"""Gender, singular and plural."""
_COLOURS = {
    "red": "rot", "orange": "orange", "yellow": "gelb", "green": "grün", "blue": "blau", "purple": "lila",
    "pink": "rosa", "brown": "braun", "black": "schwarz", "gray": "grau",
}  # fmt: skip
_UNCHANGING = ("orange", "lila", "rosa")
_NUMBERS = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben", "eight": "acht",
}  # fmt: skip
_INDEFINITE = {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es"), "m, object": ("einen", "en")}
_DEFINITE = {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")}
_NTH = {"": "", "first ": "erste ", "second ": "zweite "}
_PARTS = {"top": "oben", "bottom": "unten", "left": "links", "right": "rechts", "up": "oben", "down": "unten"}
_SENTENCES = {
    "Yes.": "Ja.",
    "No.": "Nein.",
    "Both pictures have the same number of shapes.": "Beide Bilder haben gleich viele Formen.",
    "Hello! Send me a picture and ask what is in it.": "Hallo! Schick mir ein Bild und frag, was darauf ist.",
    "Goodbye!": "Auf Wiedersehen!",
    "You are welcome.": "Gern geschehen.",
    "I do not know. I am a very small model for simple drawings.": "Das weiß ich nicht. Ich bin ein sehr kleines "
    "Modell für einfache Zeichnungen.",
    "I see no picture. Please send me one.": "Ich sehe kein Bild. Bitte schick mir eins.",
    "I can only add two numbers up to 20.": "Ich kann nur zwei Zahlen bis 20 addieren.",
    "I am seesay-demo, a very small vision-language model. I know simple drawings, not real photos.": "Ich bin "
    "seesay-demo, ein sehr kleines Modell, das Bilder versteht. Ich kenne einfache Zeichnungen, keine echten Fotos.",
    "No. I only know simple drawings, not real photos.": "Nein. Ich kenne nur einfache Zeichnungen, "
    "keine echten Fotos.",
    "This does not look like a drawn scene. I only know drawn scenes, not photos.": "Das sieht nicht gezeichnet aus. "
    "Ich kenne nur Zeichnungen, keine Fotos.",
}
_COLOUR = "|".join(_COLOURS)
_NOUN = "|".join(_NOUNS)
_PHRASE = re.compile(
    rf"(?P<article>a|an|the|no|one|{'|'.join(_NUMBERS)}) (?:(?P<colour>{_COLOUR}) )?(?P<noun>{_NOUN})(?P<plural>e?s)?"
)
_PLACES = [place for row in PLACES for place in row]


def translate(answer: str) -> str | None:
    """Return an answer of the built-in model in German, or None for one of another pattern."""
    if answer in _SENTENCES:
        return _SENTENCES[answer]
    if re.fullmatch(r"\d+ \+ \d+ = \d+\.", answer):
        return answer
    parts = [_translate_sentence(sentence.strip()) for sentence in re.findall(r"[^.]+(?=\.)", answer)]
    return " ".join(f"{part}." for part in parts if part) if parts and all(parts) else None


def _translate_sentence(sentence: str) -> str | None:
    lowered = re.sub(r"^(The|There|An?|It)\b", lambda found: found[0].lower(), sentence)
    for pattern, make in _PATTERNS:
        if match := re.fullmatch(pattern, lowered):
            made = make(match)
            return made and (made if lowered == sentence else made[0].upper() + made[1:])
    return None


def _things(text: str, *, as_object: bool = False) -> str | None:
    """Return an enumeration of noun phrases."""
    parts = [_phrase(part, as_object=as_object) for part in re.split(r", | and ", text)]
    return None if None in parts else _join([part for part in parts if part])


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} und {parts[-1]}"


def _phrase(text: str, *, as_object: bool) -> str | None:
    match = _PHRASE.fullmatch(text)
    if match is None:
        return None
    gender, singular, plural = _NOUNS[match["noun"]]
    article = match["article"]
    if article == "no":
        first, ending, noun = "keine", "en", plural
    elif article in _NUMBERS:
        first, ending, noun = _NUMBERS[article], "e", plural
    elif article == "the":
        (first, ending), noun = _DEFINITE[gender], singular
    else:
        (first, ending), noun = _INDEFINITE["m, object" if as_object and gender == "m" else gender], singular
    return " ".join(filter(None, (first, _inflect(match["colour"], ending), noun)))


def _inflect(colour: str | None, ending: str) -> str:
    word = _COLOURS.get(colour or "", "")
    return word if word in _UNCHANGING or not word else word + ending


def _place(text: str) -> str:
    if text == "in the center":
        return "in der Mitte"
    return " ".join(_PARTS[word] for word in text.split() if word in _PARTS)


def _move(text: str) -> str | None:
    if text.endswith(" stays still"):
        thing, verb = _things(text.removesuffix(" stays still")), "bleibt stehen"
    else:
        subject, _, direction = text.partition(" moves ")
        thing, verb = _things(subject), f"bewegt sich nach {_place(direction)}"
    return thing and f"{thing} {verb}"


def _after(start: str, thing: str | None) -> str | None:
    return thing and start + thing


def _values(text: str) -> str:
    return _join([part.replace(" is ", " ist ") for part in re.split(r", | and ", text)])


_MOVE = rf"(?:an?|the) (?:(?:{_COLOUR}) )?(?:{_NOUN}) (?:stays still|moves (?:{'|'.join(DIRECTIONS.values())}))"
_IN = {"word": "das Wort", "number": "die Zahl", "text": "den Text"}
_EXTREMES = {"smallest": "kleinste", "largest": "größte"}
_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], str | None]], ...] = (
    (r"there (?:is|are) (.+)", lambda m: _after("es gibt ", _things(m[1], as_object=True))),
    (r'it says "(.*)"', lambda m: f'da steht "{m[1]}"'),
    (
        rf'the picture shows the (word|number|text) "(.*)" in ({_COLOUR})',
        lambda m: f'das Bild zeigt {_IN[m[1]]} "{m[2]}" in {_COLOURS[m[3]].title()}',
    ),
    (rf"the picture shows nothing but ({_COLOUR})", lambda m: f"das Bild zeigt nur {_COLOURS[m[1]].title()}"),
    (r"the picture shows a bar chart: (.+)", lambda m: f"das Bild zeigt ein Balkendiagramm: {_values(m[1])}"),
    (
        r"the ((?:first |second )?)picture shows (.+)",
        lambda m: _after(f"das {_NTH[m[1]]}Bild zeigt ", _things(m[2], as_object=True)),
    ),
    (
        r"the (first |second )picture has (more|fewer) shapes",
        lambda m: f"das {_NTH[m[1]]}Bild hat {'mehr' if m[2] == 'more' else 'weniger'} Formen",
    ),
    (rf"(it|the text) is ({_COLOUR})", lambda m: f"{'es' if m[1] == 'it' else 'der Text'} ist {_COLOURS[m[2]]}"),
    (r"it is (an? .+)", lambda m: _after("es ist ", _things(m[1]))),
    (rf"it is ({'|'.join(_PLACES)})", lambda m: f"es ist {_place(m[1])}"),
    (rf"(.+) is ({'|'.join(_PLACES)})", lambda m: (thing := _things(m[1])) and f"{thing} ist {_place(m[2])}"),
    (
        rf"the (smallest|largest) shape is ({_COLOUR})",
        lambda m: f"die {_EXTREMES[m[1]]} Form ist {_COLOURS[m[2]]}",
    ),
    (r"the (smallest|largest) shape is (.+)", lambda m: _after(f"die {_EXTREMES[m[1]]} Form ist ", _things(m[2]))),
    (r"the (smallest|largest) bar is (\w+)", lambda m: f"der {_EXTREMES[m[1]]} Balken ist {m[2]}"),
    (rf"(the \w+) is ({_COLOUR})", lambda m: (thing := _things(m[1])) and f"{thing} ist {_COLOURS[m[2]]}"),
    (r"(the \w+ shape) is (an? \w+)", lambda m: (thing := _things(m[1])) and _after(f"{thing} ist ", _things(m[2]))),
    (rf"({_MOVE}) and ({_MOVE})", lambda m: f"{_move(m[1])} und {_move(m[2])}"),
    (rf"({_MOVE})", lambda m: _move(m[1])),
    (r"(\w+) is (\d+)", lambda m: f"{m[1]} ist {m[2]}"),
)
