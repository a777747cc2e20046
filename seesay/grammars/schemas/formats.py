"""Patterns of the values of JSON Schema's `format` that are checked. Other formats are annotations."""

from __future__ import annotations

from collections.abc import Mapping

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # Python and others have no year 0
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|([0-9]{{2}}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
_OFFSET = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"

_A, _C = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_LABEL = f"{_A}({_C}{{0,2}}{_A}|{_C}({_A}{_C}|-{_A}){_C}{{0,58}}{_A})?"
"""Up to 63 characters, none of them `--` behind two others: no pattern can tell which Punycode (`xn--`) is valid."""

_P = "[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2}"
_PATH = f"(/({_P}|:)*)*"
_HIERARCHY = f"(//[A-Za-z0-9.-]+(:[0-9]+)?{_PATH}|(/(({_P}|:)+{_PATH})?)?)"  # behind // there is a host
_RELATIVE = f"({_P})+(/({_P}|:)*)*"
_REFERENCE = f"([a-zA-Z][a-zA-Z0-9+.-]*:)?({_HIERARCHY}|{_RELATIVE})([?]({_P}|[:/?])*)?(#({_P}|[:/?])*)?"
_TEMPLATE = r"([!#$&(-;=?-Z_a-z~\[\]]|%[0-9A-Fa-f]{2}|\{[+#./;?&]?[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*\})*"
_CHAR_CLASS = r"\[\^?(a-z|A-Z|0-9|[A-Za-z0-9_. ,:/@]|\\[dDwWsS.\\\]-])+\]"
_ATOM = rf"([^\\^$.|?*+()\[\]{{}}]|\\[dDwWsSntr.\\/^$|?*+()\[\]{{}}-]|\.|{_CHAR_CLASS})"
_MORE = "[01],[1-9][0-9]{0,2}|[0-9],[1-9][0-9]{1,2}|[1-9][0-9],[1-9][0-9]{2}"  # the second number is the larger one
_QUANTIFIER = rf"([*+?]|\{{([0-9]{{1,3}},?|{_MORE})\}})?"
_FLAT = rf"({_ATOM}{_QUANTIFIER}|\|)*"
_GROUPS = rf"({_ATOM}{_QUANTIFIER}|\||\((\?:)?{_FLAT}\){_QUANTIFIER})*"
_REGEX = rf"\^?({_ATOM}{_QUANTIFIER}|\||\((\?:)?{_GROUPS}\){_QUANTIFIER})*\$?"
_POINTER = "(/([^~/]|~[01])*)*"

FORMATS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_CLOCK}{_OFFSET}$",
    "date-time": f"^{_DATE}T{_CLOCK}{_OFFSET}$",
    "hostname": rf"^{_LABEL}(\.{_LABEL})*$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
    "uri-reference": f"^{_REFERENCE}$",
    "uri-template": f"^{_TEMPLATE}$",
    "regex": f"^{_REGEX}$",
}
"""Those with an expression of our own: llguidance's have a 29 February each year, leap seconds each minute and
any Punycode."""
NARROWER: Mapping[str, str] = {
    "iri": "uri",
    "iri-reference": "uri-reference",
    "idn-email": "email",
    "idn-hostname": "hostname",
}
"""Those that are held to one that allows less."""
MAX_LENGTHS: Mapping[str, int] = {"hostname": 253}
"""How many characters the values of these have at most."""
KNOWN = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})
"""Those that llguidance knows."""
