"""From options to configurations; wrong ones are one line that names them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seesay import cli
from seesay.commands.arguments import engine_options, options
from seesay.commands.arguments.advice import adapt
from seesay.commands.serve import serve_server
from seesay.config import EngineConfig, MediaLimits, VisionConfig
from seesay.errors import ConfigError
from seesay.serving.http.listener import warn_of_strangers
from seesay.serving.settings import ServerSettings


def parse(*words: str) -> argparse.Namespace:
    return cli.make_parser().parse_args(list(words))


def test_defaults_are_the_configurations_own() -> None:
    arguments = parse("serve", "api_server")
    assert engine_options.make_engine_config(arguments) == EngineConfig()
    settings = serve_server.make_settings(arguments)
    assert settings.files_dir is not None and settings.files_dir.endswith("/seesay/files/23333")
    assert replace(settings, files_dir=None) == ServerSettings(media=MediaLimits.for_server())
    assert engine_options.make_chat_template_config(arguments) is None
    assert arguments.model_path == "seesay-demo"


def test_every_option_arrives(tmp_path: Path) -> None:
    line = (
        "serve api_server m --server-name ::1 --server-port 1234 --model-name n --api-keys a b "
        "--allow-origins http://x --allow-methods GET --allow-headers h --allow-credentials "
        "--max-concurrent-requests 3 --max-queue 4 --max-sequences-per-key 6 --frontend-timeout 7.5 "
        "--max-live-sessions 21 --live-idle-timeout 22 "
        "--request-timeout 5 --drain-timeout 6 --max-body-bytes 7 --max-total-body-bytes 70 --allow-private-hosts "
        "--media-timeout 8 "
        "--max-media-bytes 9 --max-media-pixels 90 --max-media-items 10 "
        "--tool-call-parser hermes --reasoning-parser qwen3 "
        "--generation-defaults openai --log-level info --max-log-len 11 "
        "--device cpu --dtype float16 --session-len 12 --max-batch-size 13 --cache-max-entry-count 0.5 "
        "--cache-block-seq-len 14 --max-prefill-token-num 15 --max-step-ms 18 --no-enable-prefix-caching "
        "--eager-mode --no-jump-ahead --no-unpacked-copy --revision r --download-dir d --disable-vision-encoder "
        "--trust-remote-code --vision-max-batch-size 16 --encoder-device cpu --tp 2 --expert-parallel "
        "--files-dir f --files-max-bytes 20 --max-file-bytes 19 --dp 2 --devices 0,1 --otlp-traces-endpoint http://c:1"
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
        cors_headers=("h",), cors_credentials=True, max_concurrent_requests=3, max_queue=4,
        max_sequences_per_key=6, max_live_sessions=21, live_idle_timeout_s=22,
        frontend_timeout_s=7.5, request_timeout_s=5,
        drain_timeout_s=6, max_body_bytes=7, max_total_body_bytes=70, generation_defaults="openai",
        tool_call_parser="hermes", reasoning_parser="qwen3",
        log_level="INFO", max_log_len=11, files_dir="f", files_max_bytes=20, max_file_bytes=19,
        num_replicas=2, devices=(0, 1), otlp_traces_endpoint="http://c:1",
        media=MediaLimits.for_server(
            allow_private_hosts=True, timeout_s=8, max_bytes=9, max_pixels=90, max_items=10,
            allowed_local_media_path=str(tmp_path), allowed_media_domains=("a.b",),
        ),
    )  # fmt: skip
    assert engine_options.make_engine_config(arguments) == EngineConfig(
        device_type="cpu", dtype="float16", session_len=12, max_batch_size=13, cache_max_entry_count=0.5, block_size=14,
        max_prefill_token_num=15, max_step_ms=18, enable_prefix_caching=False, eager_mode=True, jump_ahead=False,
        unpacked_copy=False, revision="r", download_dir="d", disable_vision_encoder=True, trust_remote_code=True,
        hf_overrides={"a": 1}, tp=2, expert_parallel=True,
    )  # fmt: skip
    assert engine_options.make_vision_config(arguments) == VisionConfig(max_batch_size=16, device="cpu")
    assert engine_options.make_engine_config(parse("chat", "--num-cpu-blocks", "17")).num_cpu_blocks == 17
    for words, expected in (((), None), (("--engine-process",), True), (("--no-engine-process",), False)):
        assert engine_options.make_engine_config(parse("chat", *words)).engine_process is expected
    assert engine_options.make_engine_config(parse("chat", "--step-timeout", "1.5")).step_timeout_s == 1.5


def test_steps_sized_by_time_are_turned_off() -> None:
    """Also where they are on by default. An option that is not used leaves the default as it is."""
    for words, expected in (((), "auto"), (("none",), None), (("None",), None), (("0",), None), (("7",), 7)):
        option = ("--max-step-ms", *words) if words else ()
        assert engine_options.make_engine_config(parse("chat", *option)).max_step_ms == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve api_server --tp 65", "--tp must be in [1, 64], got 65"),
        (
            "chat --quant-policy 8 --kv-cache-dtype fp8",
            "--kv-cache-dtype must be 'int8' or 'auto' with --quant-policy=8, got 'fp8'",
        ),
        ("chat --cache-max-entry-count 2", "--cache-max-entry-count must be in (0, 1], got 2.0"),
        (
            "chat --num-cpu-blocks 2 --no-enable-prefix-caching",
            "--num-cpu-blocks must be 0 without --enable-prefix-caching, got 2",
        ),
        (
            "chat --speculative-algorithm draft",
            "--speculative-draft-model must name what proposes with --speculative-algorithm='draft', got ''",
        ),
        (
            "chat --speculative-num-draft-tokens 16",
            "--speculative-num-draft-tokens must be in [1, 15], got 16",
        ),
        ("chat --record-media", "--record-media needs --record"),
        ("chat --step-timeout 0", "--step-timeout must be above 0, or None, got 0.0"),
        ("chat --hf-overrides {", "--hf-overrides must be valid JSON"),
        ("chat --hf-overrides 3", "--hf-overrides must be a JSON object"),
        ("chat --chat-template no.json", "no.json"),
        ("serve api_server --api-keys", "--api-keys requires at least one"),
        ("serve api_server --request-timeout 0", "--request-timeout must be above 0, got 0.0"),
        (
            "serve api_server --allow-origins * --allow-credentials",
            "--allow-credentials requires --allow-origins other than",
        ),
        (
            "serve api_server --allowed-local-media-path /no/such",
            "--allowed-local-media-path must be an existing folder",
        ),
        ("serve api_server --allowed-media-domains http://x", "--allowed-media-domains must be a list of host names"),
        ("serve api_server --ssl", "SSL_CERTFILE"),
        ("serve api_client http://127.0.0.1:1", "is it running"),
        ("serve api_client ftp://x", "http://"),
        ("serve proxy --nodes ftp://a:1 --server-port 0 --server-name 127.0.0.1", "url must be http://HOST:PORT"),
        ("serve api_server --proxy-url ftp://a:1 --server-port 0 --server-name 127.0.0.1", "--proxy-url="),
        ("chat /no/such/model", "no such folder"),
        ("chat --load /no/such.json /no/such/model", "no such folder"),
        ("chat --quantization awq m", "quantization must be 'fp8', 'int8' or None (weights of 4 bits need calibration"),
    ],
)
def test_wrong_options_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERTFILE", raising=False)
    assert cli.main(words.split()) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("seesay: error: ") and message in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("chat --temperature nan", "argument --temperature: must be a finite number, got 'nan'"),
        ("chat --max-new-tokens 0", "argument --max-new-tokens: must be at least 1, got 0"),
        ("chat --seed x", "argument --seed: must be an integer, got 'x'"),
        ("serve api_server --server-port 70000", "argument --server-port: must be from 0 to 65535, got 70000"),
        ("chat --dtype int4", "argument --dtype: invalid choice: 'int4'"),
        ("completion tcsh", "argument shell: invalid choice: 'tcsh'"),
        ("chta", "unknown command 'chta': did you mean 'chat'?"),
        (
            "zoo --dtype x",
            "unknown command 'zoo'; known commands are "
            "demo, chat, serve, batch, ocr, bench, replay, lite, list, check, plan, check_env, completion",
        ),
        ("serve seesay-demo", "unknown command 'seesay-demo'; to serve a model: `seesay serve api_server seesay-demo`"),
        ("serve api_servr m", "unknown command 'api_servr': did you mean 'api_server'?"),
        ("chat --temprature 1", "unknown option '--temprature': did you mean '--temperature'?"),
        ("chat --temprature=1 m", "unknown option '--temprature': did you mean '--temperature'?"),
        ("chat --server-name x", "unknown option '--server-name'; it is an option of `seesay serve api_server`"),
        ("chat --zoo", "unknown option '--zoo' (`seesay chat --help` lists them)"),
        ("--verzion", "unknown option '--verzion': did you mean '--version'?"),
        ("chat a b", "unexpected argument 'b'"),
        # What users of LMDeploy type.
        ("lite blocked_fp8 m --work-dir w", "blocked_fp8: use `seesay lite fp8`"),
        ("lite auto_awk m", "unknown command 'auto_awk': did you mean 'auto_awq'?"),
        ("lite gptq m", "unknown command 'gptq': did you mean 'auto_gptq'?"),
        ("convert internlm2 m", "convert: no conversion is needed: `seesay chat MODEL`"),
        ("serve proxy --strategy fastest", "argument --strategy: invalid choice: 'fastest'"),
        ("chat torch m", "torch: give the model alone: `seesay chat m`"),
    ],
)
def test_wrong_words_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words.split())
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seesay") and f": error: {message}" in line


def test_options_may_have_underscores() -> None:
    """As in LMDeploy's manual, section 1.14.1. Values keep theirs."""
    words = "serve gradio ./my_model-4bit --server_name my_host --server_port=23 --model-format awq --session_len 9"
    arguments = parse(*words.split())
    assert (arguments.model_path, arguments.server_name, arguments.server_port) == ("./my_model-4bit", "my_host", 23)
    assert (arguments.model_format, arguments.session_len) == ("awq", 9)


def test_advice_names_options_that_are_here() -> None:
    chat, client = (parse(*words.split()).parser for words in ("chat", "serve api_client"))
    host = "an address that is not public : set allow_private_hosts"
    assert adapt(host, chat) == host.replace("allow_private_hosts", "--allow-private-hosts")
    assert adapt(host, client) == host
    trust = "if you trust it, set trust_remote_code=True (--trust-remote-code)"
    assert adapt(trust, chat) == "if you trust it, set --trust-remote-code" and adapt(trust, client) == trust
    assert adapt("With disable_vision_encoder=True it runs", chat) == "With --disable-vision-encoder it runs"
    assert adapt("send a smaller picture or raise MediaLimits.max_pixels", chat).endswith("raise --max-media-pixels")
    assert adapt("send a part of it or raise MediaLimits.max_duration_s", chat) == "send a part of it"
    assert adapt("at most 8 tokens (session_len)", chat) == "at most 8 tokens (--session-len)"
    assert adapt("choose another template with chat_template_config", chat).endswith("with --chat-template")
    assert adapt("temperature must be at least 0, got -1.0", chat) == "--temperature must be at least 0, got -1.0"
    assert adapt("device='tpu' is none", chat) == "--device='tpu' is none"
    assert adapt("image 2: temperature must be", chat) == "image 2: temperature must be"
    assert adapt("tokenizer_config.json of model_type 'x'", chat) == "tokenizer_config.json of model_type 'x'"


@pytest.mark.parametrize(
    ("host", "warns"),
    [("0.0.0.0", True), ("::", True), ("", True), ("127.0.0.1", False), ("::1", False), ("localhost", False)],
)
def test_strangers_are_warned_of(host: str, warns: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_strangers(host, "the API", "set keys")
    shown = capsys.readouterr().err
    assert shown.startswith("seesay: warning: the API at ") == ("requires no key" in shown) == warns


@pytest.mark.parametrize("words", ["serve api_server /no/such", "serve gradio /no/such --server-name 0.0.0.0"])
def test_a_server_that_does_not_start_warns_of_nobody(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words.split(), "--server-port", "0"]) == 1
    assert "warning" not in capsys.readouterr().err


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEESAY_API_KEYS", "a, b,")
    assert serve_server.make_settings(parse("serve", "api_server")).api_keys == ("a", "b")
    assert serve_server.make_settings(parse("serve", "api_server", "--api-keys", "c")).api_keys == ("c",)


@pytest.mark.parametrize("listed", [",", " ", ", ,"])
def test_keys_in_the_environment_that_are_none(monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    """A server whose operator meant to set keys must not start without any."""
    monkeypatch.setenv("SEESAY_API_KEYS", listed)
    with pytest.raises(ConfigError, match=r"SEESAY_API_KEYS=.* names no key"):
        serve_server.make_settings(parse("serve", "api_server"))


def test_chat_templates(tmp_path: Path) -> None:
    config = engine_options.make_chat_template_config(parse("chat", "--chat-template", "qwen"))
    assert config is not None and config.model_name == "qwen"
    (tmp_path / "t.json").write_text('{"model_name": "mine", "user": "U:"}')
    config = engine_options.make_chat_template_config(parse("chat", "--chat-template", str(tmp_path / "t.json")))
    assert config is not None and config.user == "U:"
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    config = engine_options.make_chat_template_config(parse("chat", "--chat-template", str(tmp_path / "t.jinja")))
    assert config is not None and config.model_path == str(tmp_path / "t.jinja")


@pytest.mark.parametrize("command", [("chat",), ("serve", "api_server"), ("serve", "gradio")])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vicunna", None, "'vicunna': there is no chat template with this name; did you mean 'vicuna'"),
        ("gone.json", None, "chat template file '.*gone.json': there is no such file"),
        ("gone.jinja", None, "chat template '.*gone.jinja': there is no such file or folder"),
        ("bad.json", '{"model_name": "mine",\n "user": }', r"bad.json': not valid JSON: .*line 2 column 10"),
        ("list.json", "[]", "list.json': must be a JSON object, got list"),
        ("deep.json", "[" * 50_000, "deep.json': not valid JSON"),
        ("field.json", '{"model_name": "mine", "asistant": ""}', "unknown field 'asistant'; did you mean 'assistant'"),
        ("noname.json", '{"user": ""}', "noname.json': model_name is missing"),
        ("nobody.json", '{"model_name": "lama2"}', "'lama2': there is no chat template .* did you mean 'llama2'"),
        ("type.json", '{"model_name": "mine", "user": 5}', "user"),
        ("kind.json", '{"model_name": "chatml", "capability": "infilling"}', "infilling"),
        ("bad.jinja", "{% for m in messages %}{{ m.content }", "bad.jinja': not valid Jinja: .*"),
    ],
)
def test_chat_templates_that_cannot_be_used(
    command: tuple[str, ...], name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    """One error, before anything is loaded."""
    given = name
    if "." in name:
        given = str(tmp_path / name)
        if content is not None:
            (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        engine_options.make_chat_template_config(parse(*command, "--chat-template", given))


def test_sampling_options() -> None:
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
def test_help_has_examples_and_is_light(words: list[str]) -> None:
    code = (
        "import sys, seesay.cli\n"
        f"try: seesay.cli.main({[*words, '--help']!r})\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'httpx', 'fastapi', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("[]\n") and "examples:\n" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
