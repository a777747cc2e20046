"""The benchmark of structured answers: steps are counted, and jumps save some."""

from __future__ import annotations

import json

import pytest
import structured
from grammars.byte_grammar import accepts, compile_schema


def _write_invoice(*, name: str = "Abc", unit_price: str = "12.50") -> str:
    line = f'{{"description": "{name}", "quantity": 12, "unit_price": {unit_price}}}'
    return (
        f'{{"invoice_number": 12, "customer_name": "{name}", '
        f'"billing_address": {{"street": "{name}", "city": "{name}", "country_code": "DE"}}, '
        f'"line_items": [{line}, {line}], "payment_terms": "immediately", "is_paid": true}}'
    )


def test_each_value_of_an_invoice_has_an_end() -> None:
    """A model at temperature 1 may go on with any text or number that the schema leaves open until it is cut off."""
    schema = compile_schema(structured.make_schema(3))
    assert accepts(schema, _write_invoice())
    assert not accepts(schema, _write_invoice(name="Abcd"))
    assert not accepts(schema, _write_invoice(name="Abc d"))
    assert not accepts(schema, _write_invoice(unit_price="12.501"))


@pytest.mark.slow
def test_jumps_save_steps_of_answers_with_a_schema_alone(capsys: pytest.CaptureFixture[str]) -> None:
    structured.main(["--rows", "2", "--rounds", "1", "--letters", "3", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(line["kind"], line["jumps"]): line for line in lines}
    assert set(found) == {(kind, jumps) for kind in structured.KINDS for jumps in (False, True)}
    for (kind, jumps), line in found.items():
        assert (line["jumped_tokens"] > 0) == (jumps and kind != "plain")
        assert line["tokens"] > 0 < line["s_per_answer"]
        assert line["open_answers"] == 0
    assert found["plain", True]["steps"] == found["plain", False]["steps"] >= structured.PLAIN_TOKENS
    assert found["all", True]["steps"] < found["all", False]["steps"] / 2
