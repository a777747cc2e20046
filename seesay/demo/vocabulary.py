"""The vocabulary of the built-in checkpoint: colours, shapes, words and numbers, as plain data."""

from __future__ import annotations

RGB = tuple[int, int, int]

COLOURS: dict[str, tuple[RGB, ...]] = {
    "red": ((220, 40, 40), (255, 0, 0), (200, 20, 45)),
    "orange": ((245, 140, 30), (255, 165, 0), (250, 125, 20)),
    "yellow": ((240, 215, 40), (255, 255, 0), (250, 225, 70)),
    "green": ((40, 160, 70), (0, 128, 0), (0, 220, 40)),
    "blue": ((45, 90, 220), (0, 0, 255), (30, 120, 235)),
    "purple": ((135, 60, 190), (128, 0, 128), (150, 50, 220)),
    "pink": ((245, 130, 190), (255, 160, 190), (255, 105, 180)),
    "brown": ((125, 75, 40), (139, 69, 19), (110, 65, 45)),
    "black": ((25, 25, 25), (0, 0, 0), (40, 40, 45)),
    "gray": ((140, 140, 140), (128, 128, 128), (155, 155, 160)),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "star", "heart", "cross", "ring")

COUNT_WORDS: tuple[str, ...] = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
MAX_SHAPES = 6

PLACES: tuple[tuple[str, ...], ...] = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the center", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
"""Names of places, by row and column of a 3 x 3 grid over the picture."""

DIRECTIONS: dict[tuple[int, int], str] = {
    (-1, 0): "to the left",
    (1, 0): "to the right",
    (0, -1): "up",
    (0, 1): "down",
    (-1, -1): "up and to the left",
    (1, -1): "up and to the right",
    (-1, 1): "down and to the left",
    (1, 1): "down and to the right",
}
"""Names of directions, by the sign of the step in x and y (y grows downwards)."""

LABEL_SETS: tuple[tuple[str, ...], ...] = (
    ("A", "B", "C", "D", "E", "F"),
    ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    ("cat", "dog", "fox", "owl", "hen", "cow", "pig", "bee"),
    ("tea", "milk", "rice", "fish", "corn", "beans", "bread"),
    ("Ann", "Bob", "Eve", "Kim", "Leo", "Max", "Tom", "Zoe"),
)
"""Families of bar labels. The bars of one chart come from one family."""

LARGEST_BAR_VALUE = 20
LARGEST_ADDEND = 20

GLYPHS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

_WORD_LIST = """
able about above acid across act add after again age ago air all also animal answer any apple area arm art ask
baby back bag ball bank base bath beach bear bed before begin bell belt best big bird bite blow board boat body
bone book born both bottle bowl box boy brain branch brave bread break brick bridge bring broad brother build burn
bus busy butter button cake call camp can candle cap car card care carry cart cat catch chain chair chalk chance
cheap cheese chest chief child church city class clean clear clock close cloth cloud club coal coast coat coffee
cold cook copper copy corn cotton cover cow crime crop cross crowd cup curve dance dark day deep desk dinner dog
door doubt down draw dream dress drink drive drop dry duck dust ear early earth east easy edge egg eight end engine
equal even event every eye face fact fair fall family farm fast father fear few field fight fire first fish five
flag flat flight floor flower fly fold food foot force forest fork form four fox free fresh friend front fruit
full game garden gate ghost gift girl give glass glove gold good grain grass great green grip group grow guide
half hammer hand happy harbor hard hat head heart heat help hen hill hold hole home honey hook hope horn horse
hotel hour house ice idea ink iron island jelly jewel join judge jump keep kettle key kind king kiss kitchen knee
knife knot lake lamp land large laugh law lead leaf learn left leg lemon letter level light line lion lip list
lock long look love low lunch machine magic mail make map market mask match meal meat metal milk mind mine mirror
money monkey moon morning mother mountain mouse mouth move music nail name neck need needle nest net never new
night noise north nose note number nut ocean office oil old open orange order oven over owl page paint paper
park party path peace pen pencil people pepper piano picture pig pin pipe place plane plant plate play pocket
point pot potato power price print prize public pull pump push queen quick quiet rabbit rail rain read ready rice
right ring river road rock roof room root rope rose round rule sad sail salt sand save school sea seat second
seed seven shade sharp sheep shelf ship shirt shoe shop short show silver sing sister six size skin sky sleep
slow small smile smoke snake snow soap sock soft son song sound soup south space spoon spring square stage stamp
star start station steam stem step stick stone stop store storm story street strong sugar summer sun sweet swim
table tail talk tall taste tax tea teach tent test three throat ticket tiger time tired toe tooth top touch town
toy train tree trick true turn twist under unit uncle value view visit voice wait walk wall warm wash watch water
wave wax way week well west wheel whistle white wide wind window wing winter wire wise wolf wood wool word work
world worm write yard year yellow young zebra zero zoo
"""
WORDS: tuple[str, ...] = tuple(_WORD_LIST.split())
"""The words that are written in pictures."""


def plural(noun: str) -> str:
    """Return the plural of a noun phrase that ends in a shape's name, `shape`, `object` or `bar`."""
    return noun + ("es" if noun.endswith("s") else "s")


def with_article(phrase: str) -> str:
    """Return `phrase` after *a* or *an*."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def joined(parts: list[str]) -> str:
    """Return `parts` as an English enumeration: *a, b and c*."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
