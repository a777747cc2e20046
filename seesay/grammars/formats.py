"""Regular expressions for the values of JSON Schema's `format`: each matches valid values only, calendars included."""

from __future__ import annotations

from collections.abc import Mapping

_H = "[0-9a-fA-F]"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_G = f"{_H}{{1,4}}"
_IPV6 = "|".join(
    [f"({_G}:){{7}}{_G}", f"({_G}:){{1,7}}:", f":(:{_G}){{1,7}}"]
    + [f"({_G}:){{1,{n}}}(:{_G}){{1,{7 - n}}}" for n in range(6, 0, -1)]
    + ["::"]
)
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # Python and others have no year 0
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|([0-9]{{2}}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_OFFSET = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,6}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_PCHAR = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_TIME_PART = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"

FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": f"{_CLOCK}{_OFFSET}",
    "date-time": f"{_DATE}T{_CLOCK}{_OFFSET}",
    "duration": f"P(([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)({_TIME_PART})?|{_TIME_PART}|[0-9]+W)",
    "email": rf"{_ATOM}(\.{_ATOM}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*://{_HOST}(:[0-9]{{1,4}})?(/{_PCHAR}*)*(\?({_PCHAR}|[/?])*)?(#({_PCHAR}|[/?])*)?",
    "uuid": f"{_H}{{8}}-{_H}{{4}}-{_H}{{4}}-{_H}{{4}}-{_H}{{12}}",
    "json-pointer": "(/([^~/]|~[01])*)*",
}
