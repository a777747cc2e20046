"""Code from LMDeploy's documentation runs once the package's name is changed, here with the built-in model."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from seesay.errors import ConfigError
from seesay.templates import builtin


def test_custom_chat_template(monkeypatch):
    monkeypatch.setattr(builtin, "_registered", {})
    from seesay.model import MODELS, BaseChatTemplate

    @MODELS.register_module(name="customized_model")
    class CustomizedModel(BaseChatTemplate):
        """A customized chat template."""

        def __init__(
            self,
            system="<|im_start|>system\n",
            meta_instruction="You are a robot developed by LMDeploy.",
            user="<|im_start|>user\n",
            assistant="<|im_start|>assistant\n",
            eosys="<|im_end|>\n",
            eoh="<|im_end|>\n",
            eoa="<|im_end|>",
            separator="\n",
            stop_words=["<|im_end|>", "<|action_end|>"],  # noqa: B006 - as the documentation has it
        ):
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


def test_templates_that_are_more_than_pieces_are_refused(monkeypatch):
    monkeypatch.setattr(builtin, "_registered", {})
    from seesay.model import MODELS, BaseChatTemplate

    class Own(BaseChatTemplate):
        def messages2prompt(self, messages):
            return str(messages)

    with pytest.raises(ConfigError, match=r"Own\.messages2prompt is not supported"):
        MODELS.register_module(name="own")(Own)
    for wrong in ({"user": 5}, {"stop_words": "ab"}, {"capability": "python"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            BaseChatTemplate(**wrong)
    assert builtin.find("own") is None


def test_messages_and_pictures_as_base64(tmp_path):
    from seesay import pipeline
    from seesay.messages import GenerationConfig, PytorchEngineConfig
    from seesay.vl.utils import encode_image_base64

    picture = Image.new("RGB", (64, 48), "red")
    picture.save(tmp_path / "red.png")
    encoded = encode_image_base64(picture)
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (64, 48)
    assert base64.b64decode(encode_image_base64(tmp_path / "red.png")) == (tmp_path / "red.png").read_bytes()
    config = PytorchEngineConfig(dp=1, session_len=1024, enable_metrics=True)
    with pipeline("seesay-demo", backend_config=config) as pipe:
        content = [
            {"type": "text", "text": "describe this image"},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{encoded}"}},
        ]
        out = pipe([{"role": "user", "content": content}], gen_config=GenerationConfig(top_k=1, max_new_tokens=8))
    assert out.finish_reason in ("stop", "length"), out.text


def test_template_by_its_name_alone():
    from seesay import pipeline

    with pipeline("seesay-demo", chat_template_config="vicuna") as pipe:
        assert pipe.chat_template.name == "vicuna"
