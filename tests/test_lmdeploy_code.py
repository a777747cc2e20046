"""Code from LMDeploy's documentation runs once the package's name is changed, here with the built-in model."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay.errors import ConfigError
from seesay.templates import builtin


@pytest.mark.usefixtures("forget_templates")
def test_custom_chat_template() -> None:
    from seesay.model import MODELS, BaseChatTemplate

    @MODELS.register_module(name="customized_model")
    class CustomizedModel(BaseChatTemplate):
        """A customized chat template."""

        def __init__(
            self,
            system: Any = "<|im_start|>system\n",
            meta_instruction: Any = "You are a robot developed by LMDeploy.",
            user: Any = "<|im_start|>user\n",
            assistant: Any = "<|im_start|>assistant\n",
            eosys: Any = "<|im_end|>\n",
            eoh: Any = "<|im_end|>\n",
            eoa: Any = "<|im_end|>",
            separator: Any = "\n",
            stop_words: Any = ["<|im_end|>", "<|action_end|>"],  # noqa: B006 - as the documentation has it
        ) -> None:
            super().__init__(
                system=system,
                meta_instruction=meta_instruction,
                eosys=eosys,
                user=user,
                eoh=eoh,
                assistant=assistant,
                eoa=eoa,
                separator=separator,
                stop_words=stop_words,
            )

    from seesay import ChatTemplateConfig, pipeline

    messages = [{"role": "user", "content": "who are you?"}]
    with pipeline("seesay-demo", chat_template_config=ChatTemplateConfig("customized_model")) as pipe:
        assert pipe.chat_template.meta_instruction == "You are a robot developed by LMDeploy."
        assert pipe.chat_template.stop_words == ["<|im_end|>", "<|action_end|>"]
        assert "".join(response.text for response in pipe.stream_infer(messages))


@pytest.mark.usefixtures("forget_templates")
def test_templates_that_are_more_than_pieces_are_refused() -> None:
    from seesay.model import MODELS, BaseChatTemplate

    class Own(BaseChatTemplate):
        def messages2prompt(self, messages: Any) -> Any:
            return str(messages)

    with pytest.raises(ConfigError, match=r"Own\.messages2prompt is not supported"):
        MODELS.register_module(name="own")(Own)
    for wrong in ({"user": 5}, {"stop_words": "ab"}, {"capability": "python"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            BaseChatTemplate(**wrong)
    assert builtin.find("own") is None


@pytest.mark.usefixtures("forget_templates")
def test_other_ways_to_register_a_class() -> None:
    from seesay.model import MODELS, BaseChatTemplate
    from seesay.templates.guesses import guess

    class Own(BaseChatTemplate):
        def __init__(self, user: str = "U:") -> None:
            super().__init__(user=user)

        @classmethod
        def match(cls, model_path: str) -> str | None:
            return "first" if "my-model" in model_path else None

    assert MODELS.register_module(name=["first", "second"])(Own) is Own
    MODELS.register_module(module=Own)
    MODELS.register_module(name="vicuna", force=True, module=Own)
    for name in ("first", "second", "Own", "vicuna"):
        found = builtin.find(name)
        assert found is not None and found.user == "U:"
    assert guess("company/my-model-7b") == "first"
    with pytest.raises(ConfigError, match="'second': there is already"):
        MODELS.register_module("second")(Own)

    class NeedsMore(BaseChatTemplate):
        def __init__(self, user: str) -> None:
            super().__init__(user=user)

    with pytest.raises(ConfigError, match=r"NeedsMore\(\) must work without arguments"):
        MODELS.register_module("more")(NeedsMore)
    with pytest.raises(ConfigError, match=r"subclass of seesay\.model\.BaseChatTemplate"):
        MODELS.register_module("other")(dict)


def test_messages_and_pictures_as_base64(tmp_path: Path) -> None:
    from seesay import pipeline
    from seesay.messages import GenerationConfig, PytorchEngineConfig
    from seesay.vl.utils import encode_image_base64

    picture = Image.new("RGB", (64, 48), "red")
    picture.save(tmp_path / "red.png")
    encoded = encode_image_base64(picture)
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (64, 48)
    assert base64.b64decode(encode_image_base64(tmp_path / "red.png")) == (tmp_path / "red.png").read_bytes()
    config = PytorchEngineConfig(dp=1, session_len=1024, enable_metrics=True)  # type: ignore[call-arg]
    with pipeline("seesay-demo", backend_config=config) as pipe:
        content = [
            {"type": "text", "text": "describe this image"},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{encoded}"}},
        ]
        out = pipe([{"role": "user", "content": content}], gen_config=GenerationConfig(top_k=1, max_new_tokens=8))
    assert out.finish_reason in ("stop", "length"), out.text


def test_template_by_its_name_alone() -> None:
    from seesay import pipeline

    with pipeline("seesay-demo", chat_template_config="vicuna") as pipe:
        assert pipe.chat_template.name == "vicuna"


# --- modules ---------------------------------------------------------------------------------------------------------

# Every import that LMDeploy's manual has, renamed.
IMPORTS = [
    "from seesay import pipeline, GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig, VisionConfig",
    "from seesay import ChatTemplateConfig, serve, client",
    "from seesay.vl import load_image",
    "from seesay.vl.constants import IMAGE_TOKEN",
    "from seesay.vl.utils import encode_image_base64",
    "from seesay.messages import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig",
    "from seesay.model import MODELS, BaseChatTemplate, ChatTemplateConfig",
    "from seesay.pytorch import EngineConfig",
    "from seesay.turbomind import EngineConfig",
    "from seesay.serve.openai.api_client import APIClient",
    "import seesay.serve.openai.api_client",
    "from seesay.serve.async_engine import AsyncEngine",
    "from seesay.serve.gradio.turbomind_coupled import run_local",
    "from seesay.serve.gradio.api_server_backend import run_api_server",
    "from seesay.serve.gradio.app import run",
]


@pytest.mark.parametrize("statement", IMPORTS)
def test_imports(statement: str) -> None:
    names: dict[str, object] = {}
    exec(statement, names)
    assert all(value is not None for value in names.values())


def test_modules_hold_what_their_names_say() -> None:
    import seesay
    import seesay.pytorch
    import seesay.turbomind
    from seesay.serve.gradio.turbomind_coupled import run_local
    from seesay.serve.openai.api_client import APIClient

    assert APIClient is seesay.APIClient
    assert seesay.pytorch.EngineConfig is seesay.PytorchEngineConfig
    assert seesay.turbomind.EngineConfig is seesay.TurbomindEngineConfig
    assert run_local is seesay.ui.run_local


@pytest.mark.parametrize(
    "first",
    [
        "import seesay; before = seesay.serve; import seesay.serve.openai.api_client",
        "from seesay.serve.openai.api_client import APIClient",
        "import seesay.serve",
        "from seesay import serve; from seesay.serve.openai.api_client import APIClient",
    ],
)
def test_serve_is_a_function_whatever_was_imported(first: str) -> None:
    """In LMDeploy `serve` is a function and a package, too."""
    code = (
        f"{first}\nimport inspect, seesay\nfrom seesay import serve\nfrom seesay.serving import launch\n"
        "for each in (seesay.serve, serve):\n"
        "    assert inspect.signature(each) == inspect.signature(launch.serve), inspect.signature(each)\n"
        "    try: each(backend='x')\n"
        "    except seesay.errors.ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["backend must be 'pytorch' or 'turbomind', got 'x'"] * 2, done.stderr


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("seesay.turbomind", "TurboMind", "use seesay.pipeline(...)"),
        ("seesay.serve.openai.api_server", "serve", "use seesay.serve(...)"),
        ("seesay.serve.openai.api_client", "get_model_list", "use APIClient(url).available_models"),
        ("seesay.messages", "EngineGenerationConfig", "use GenerationConfig"),
        ("seesay", "Tokenizer", "use the `tokenizer` of a pipeline"),
    ],
)
def test_names_without_a_counterpart_say_what_to_use(module: str, name: str, advice: str) -> None:
    with pytest.raises(ImportError, match=re.escape(f"{module}.{name} is LMDeploy's and not part of seesay: {advice}")):
        exec(f"from {module} import {name}")
    with pytest.raises(ImportError, match="cannot import name 'other'"):
        exec(f"from {module} import other")


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("from seesay.pytorch.config import ModelConfig", "use seesay.EngineConfig"),
        ("from seesay.api import pipeline", "import pipeline, serve and client from seesay"),
        ("from seesay.serve.proxy.proxy import proxy", "load balancer"),
        ("from seesay.serve.vl_async_engine import VLAsyncEngine", "use seesay.AsyncEngine"),
        ("from seesay.tokenizer import Tokenizer", "`tokenizer` of a pipeline"),
        ("import seesay.archs", "`seesay list`"),
        ("from seesay.serve.openai.protocol import ChatCompletionRequest", "use seesay.serving.openai.protocol"),
        ("import seesay.serve.gradio.vl", "seesay serve gradio"),
    ],
)
def test_modules_without_a_counterpart_say_what_to_use(statement: str, advice: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(advice)):
        exec(statement)
    for module in ("seesay.no_such", "seesay.pytorch.no_such"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
            exec(f"import {module}")


def test_the_webui_of_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDeploy's manual gives a Space this name."""
    from seesay.serve.gradio.turbomind_coupled import run_local
    from seesay.ui import app

    seen = []
    monkeypatch.setattr(app, "run_webui", lambda *args, **options: seen.append(options))
    run_local("model", server_name="huggingface-space")
    assert (seen[0]["server_name"], seen[0]["server_port"]) == ("0.0.0.0", 7860)
