"""`--config FILE` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seesay.cli import make_parser
from seesay.commands.arguments.config_file import use_config_file


def parse(folder: Path, text: str, *argv: str) -> Any:
    file = folder / "options.yaml"
    file.write_text(text)
    parser, words = make_parser(), [*argv, "--config", str(file)]
    use_config_file(parser, words)
    return parser.parse_args(words)


SERVE = ("serve", "api_server")


def test_a_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    text = """
        model: some/model
        session_len: 8192
        server-port: 1
        enable-prefix-caching: false
        eager-mode: true
        model-name: [a, b]
        api-keys: [k1, k2]
        cache-max-entry-count: 0.5
    """
    got = parse(tmp_path, text, *SERVE, "--server-port", "2")
    assert (got.model_path, got.session_len, got.server_port) == ("some/model", 8192, 2)
    assert (got.enable_prefix_caching, got.eager_mode) == (False, True)
    assert (got.model_name, got.api_keys, got.cache_max_entry_count) == (["a", "b"], ["k1", "k2"], 0.5)
    assert parse(tmp_path, "model: one", *SERVE, "other").model_path == "other"
    assert parse(tmp_path, "api-keys: one", *SERVE).api_keys == ["one"]
    assert parse(tmp_path, "", *SERVE).server_port == 23333


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("session_lem: 1", "unknown option 'session_lem': did you mean '--session-len'"),
        ("session-len: many", "session-len: must be an integer, got 'many'"),
        ("session-len: [1, 2]", "session-len must be one value"),
        ("api-keys: {one: two}", "api-keys must be one value or a list"),
        ("eager-mode: 3", "eager-mode must be true or false"),
        ("session-len: true", "session-len must be a value"),
        ("dtype: float8", "dtype: invalid choice"),
        ("config: other.yaml", "unknown option 'config'"),
        ("- a", "must be a mapping"),
        ("a: [", "expected"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(tmp_path, text, *SERVE)
    err = capsys.readouterr().err
    assert raised.value.code == 2 and message in err and err.count("\n") == 1, err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        use_config_file(make_parser(), [*SERVE, f"--config={tmp_path}/none.yaml"])
    assert "No such file" in capsys.readouterr().err
