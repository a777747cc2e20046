"""From options to configurations; wrong ones are one line that names them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from seesay import cli
from seesay.commands import options, serve_server
from seesay.config import EngineConfig, MediaLimits
from seesay.serving.settings import ServerSettings


def parse(*words: str) -> argparse.Namespace:
    return cli.make_parser().parse_args(list(words))


def test_defaults_are_the_configurations_own():
    arguments = parse("serve", "api_server")
    assert options.make_engine_config(arguments) == EngineConfig()
    settings = serve_server.make_settings(arguments)
    assert settings == ServerSettings(media=MediaLimits.for_server())
    assert options.make_chat_template_config(arguments) is None
    assert arguments.model_path == "seesay-demo"


def test_every_option_arrives(tmp_path: Path):
    line = (
        "serve api_server m --server-name ::1 --server-port 1234 --model-name n --api-keys a b "
        "--allow-origins http://x --allow-methods GET --allow-headers h --allow-credentials "
        "--max-concurrent-requests 3 --max-queue 4 "
        "--request-timeout 5 --drain-timeout 6 --max-body-bytes 7 --max-total-body-bytes 70 --allow-private-hosts "
        "--media-timeout 8 "
        "--max-media-bytes 9 --max-media-pixels 90 --max-media-items 10 "
        "--generation-defaults openai --log-level info --max-log-len 11 "
        "--device cpu --dtype float16 --session-len 12 --max-batch-size 13 --cache-max-entry-count 0.5 "
        "--cache-block-seq-len 14 --max-prefill-token-num 15 --no-enable-prefix-caching --eager-mode --revision r "
        "--download-dir d --disable-vision-encoder --trust-remote-code --vision-max-batch-size 16"
    )
    arguments = parse(
        *line.split(),
        "--hf-overrides",
        '{"a": 1}',
        "--allowed-local-media-path",
        str(tmp_path),
        "--allowed-media-domains",
        "a.b",
    )
    assert serve_server.make_settings(arguments) == ServerSettings(
        host="::1", port=1234, model_name="n", api_keys=("a", "b"), cors_origins=("http://x",), cors_methods=("GET",),
        cors_headers=("h",), cors_credentials=True, max_concurrent_requests=3, max_queue=4, request_timeout_s=5,
        drain_timeout_s=6, max_body_bytes=7, max_total_body_bytes=70, generation_defaults="openai",
        log_level="INFO", max_log_len=11,
        media=MediaLimits.for_server(
            allow_private_hosts=True, timeout_s=8, max_bytes=9, max_pixels=90, max_items=10,
            allowed_local_media_path=str(tmp_path), allowed_media_domains=("a.b",),
        ),
    )  # fmt: skip
    assert options.make_engine_config(arguments) == EngineConfig(
        device_type="cpu", dtype="float16", session_len=12, max_batch_size=13, cache_max_entry_count=0.5, block_size=14,
        max_prefill_token_num=15, enable_prefix_caching=False, eager_mode=True, revision="r", download_dir="d",
        disable_vision_encoder=True, trust_remote_code=True, hf_overrides={"a": 1},
    )  # fmt: skip
    assert options.make_vision_config(arguments).max_batch_size == 16
    assert options.make_engine_config(parse("chat", "--num-cpu-blocks", "17")).num_cpu_blocks == 17


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve api_server --tp 2", "tp=2 is not supported"),
        ("chat --quant-policy 8", "quant_policy=8 is not supported"),
        ("chat --adapters a=b", "adapters="),
        ("chat --cache-max-entry-count 2", "cache_max_entry_count=2.0"),
        ("chat --num-cpu-blocks 2 --no-enable-prefix-caching", "num_cpu_blocks=2: must be 0 without"),
        ("chat --hf-overrides {", "--hf-overrides: not JSON"),
        ("chat --hf-overrides 3", "--hf-overrides: must be a JSON object"),
        ("chat --chat-template no.json", "no.json"),
        ("serve api_server --api-keys", "--api-keys: name at least one"),
        ("serve api_server --request-timeout 0", "request_timeout_s"),
        ("serve api_server --allow-origins * --allow-credentials", "cors_credentials"),
        ("serve api_server --allowed-local-media-path /no/such", "allowed_local_media_path"),
        ("serve api_server --allowed-media-domains http://x", "allowed_media_domains"),
        ("serve api_server --ssl", "SSL_CERTFILE"),
        ("serve api_client http://127.0.0.1:1", "is it running"),
        ("serve api_client ftp://x", "http://"),
        ("chat /no/such/model", "no such folder"),
        ("chat --load /no/such.json /no/such/model", "no such folder"),
    ],
)
def test_wrong_options_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SSL_CERTFILE", raising=False)
    assert cli.main(words.split()) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("seesay: error: ") and message in error


@pytest.mark.parametrize(
    "words",
    [
        "chat --temperature nan", "chat --max-new-tokens 0", "chat --seed x", "serve api_server --server-port 70000",
        "zoo", "chat --dtype int4", "serve zoo", "completion tcsh",
    ],
)  # fmt: skip
def test_wrong_values_are_told_with_the_usage(words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        cli.main(words.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: seesay")


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEESAY_API_KEYS", "a, b,")
    assert serve_server.make_settings(parse("serve", "api_server")).api_keys == ("a", "b")
    assert serve_server.make_settings(parse("serve", "api_server", "--api-keys", "c")).api_keys == ("c",)


def test_chat_templates(tmp_path: Path):
    assert options.make_chat_template_config(parse("chat", "--chat-template", "qwen")).model_name == "qwen"
    (tmp_path / "t.json").write_text('{"model_name": "mine", "user": "U:"}')
    config = options.make_chat_template_config(parse("chat", "--chat-template", str(tmp_path / "t.json")))
    assert config is not None and config.user == "U:"
    config = options.make_chat_template_config(parse("chat", "--chat-template", "a/b.jinja"))
    assert config is not None and config.model_path == "a/b.jinja"


def test_sampling_options():
    greedy, sampled = parse("chat"), parse("chat", "--temperature", "0.7", "--seed", "3", "--top-k", "5")
    assert not options.make_generation_config(greedy).do_sample
    config = options.make_generation_config(sampled)
    assert config.do_sample and config.random_seed == 3 and config.top_k == 5
    # The penalty too: it is 1 as the help says, whatever the server's model recommends.
    assert options.make_request_fields(greedy) == {"max_tokens": 512, "temperature": 0.0, "repetition_penalty": 1.0}
    assert options.make_request_fields(sampled)["seed"] == 3


@pytest.mark.parametrize(
    "words", [[], ["chat"], ["serve"], ["serve", "api_server"], ["serve", "gradio"], ["completion"]]
)
def test_help_has_examples_and_is_light(words: list[str]):
    code = (
        "import sys, seesay.cli\n"
        f"try: seesay.cli.main({[*words, '--help']!r})\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'httpx', 'fastapi', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.endswith("[]\n") and "examples:\n" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
