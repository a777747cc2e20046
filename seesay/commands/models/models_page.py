"""docs/models.md: the models that can be used, made of what the families declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seesay.llm.models.configs.kinds import list_backbones
from seesay.values import Modality
from seesay.vl.bases.timm_tower import PERCEPTION_ENCODERS
from seesay.vl.family import Family
from seesay.vl.model_names import MODEL_NAMES, REASONS, ModelName
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.published import Published
from seesay.vl.registry import WITH_TOWER, find_family, list_layouts

_NONE = "-"
_HEAD = """\
# Models

Made by `seesay list --markdown > docs/models.md` of what the model families declare.

A checkpoint is found by the architecture in its config.json, so fine-tuned and renamed models run like those that are
named here as examples. It is a folder or an id on the Hugging Face hub, and its weights are safetensors; code beside
the weights is run only for [other models](#other-models), and only with `trust_remote_code=True`. A folder in Mistral's
own layout, with params.json and no config.json, is read as the same model in Transformers' layout.
[quantization.md](quantization.md) lists the formats of weights, [chat_templates.md](chat_templates.md) the templates.

Families are written here; the tests hold each to Transformers' own class, or to a plain statement of the published
code where Transformers has none (Baichuan 2 of 13B, CogVLM, DeepSeek-OCR, DeepSeek-VL2, GLM-4V,
InternLM-XComposer2, Kimi-VL, MiniCPM-V, Mini-Gemini, Molmo, Mono-InternVL, Phi-3-vision, Qwen-VL, Ultravox): tokens,
pixels, rows of the tower, logits, and greedy answers in all ways of computing them.
[Other models](#other-models) run through Transformers' modules: they are not quantized, and take new weights of whole
folders.

Qwen3-Next, Qwen3.5, MiniCPM-V 4.6, LFM2, LFM2-VL, Granite 4, Bamba, Falcon-H1, Nemotron-H, Nemotron Omni, Jamba and
Kimi-Linear keep a state of each sequence ([states](design/states.md)). DeepSeek-V2 and V3, DeepSeek-VL2, Kimi-VL and
some layers of Kimi-Linear attend to latent rows. Quantized weights of their `kv_b_proj` are multiplied out when they
are loaded; adapters of it, and an int4 KV cache, are refused.

## Vision-language models

Every family takes several pictures in a prompt, anywhere in the text, but for `late_interaction`, which
[embeds](embeddings.md) a page or a text. A family without videos gets the frames of a video as pictures.
Options of an item stand beside its URL or in `load_image(...)`. Every family has `detail`, and an option
that a family does not have is refused by name. [media.md](media.md) says what they mean, and which ones all videos
have.
"""
_TOWERS = """\
## Towers of timm

The vision tower of these checkpoints is a model of [timm](https://github.com/huggingface/pytorch-image-models), by
`architecture` and `model_args` of the `vision_config`: {families}.

The package computes these itself, without timm: {own}.

Every other one is computed by timm's module, which is made without downloading anything and filled with the weights of
the checkpoint. The extra `timm` installs it ([installing.md](installing.md)).
"""
_AUDIO = """\
## Models of audio

Any number of sounds stand in a prompt, anywhere in the text ([media.md](media.md#audio)), which
[transcripts](server.md#transcripts) are made of, too. They have no options. [Other models](#other-models) take audio
through Transformers' modules. The folders of Ultravox have a projector, and name the models whose encoder and decoder
they lack (`text_model_id`, `audio_model_id`): a folder, or an id on the hub, from where these are downloaded, too.
Phi-4-multimodal is read in the layout of Transformers (`--revision refs/pr/70`), and pictures are refused. It was
trained to hear with an adapter, which lies beside its weights: give it the name `speech`
(`--adapters speech=FOLDER/speech-lora`), and requests with audio take it, without naming it.
"""
_TEXT = """\
## Text models

The same engine and the same options, with no media in the prompt.
"""
_BACKBONES = """\
## Decoders

Decoders are one implementation with options. A vision-language model may have any of these inside (`model_type` of the
text configuration):
"""
_MODULES = """\
## Other models

A model of the families above whose decoder is of another type, such as InternVL with a Helium, has our tower and
Transformers' modules of that decoder. Any other model of Transformers for text (`AutoModelForCausalLM`), or for texts
with pictures or audio (`AutoModelForMultimodalLM`), runs through Transformers' own modules where these ask its
interface for attention: with our scheduler, KV blocks, prefix cache, sampling and server around them, and the weights
of its safetensors. The model is found by its architecture, or else by its `model_type`, as Transformers finds it. It
is probed before its weights are read, and compared with its own attention behind that. What cannot run says why, and
in most cases which model that runs is nearest: layers with a recurrent or convolutional state, tokens that see later
ones, rotary scaling by the longest text of a step, an encoder of the prompt. Such a model is not quantized.

Of its modules our kernels compute what they know: linear layers, those of one input as one product; RMS norms, found by
what they compute; and rotary embeddings that turn halves, left to the kernel that writes keys and values. All of it is
compared with the modules at start, and what differs is left to them. Decode steps are CUDA graphs, unless the modules
look at the device or change with numbers of the host; that is tried at start, too, and the log says why there are none.

A model that neither we nor Transformers have, but whose code lies beside its weights (`auto_map` in config.json), runs
in the same way with `EngineConfig(trust_remote_code=True)` (`--trust-remote-code`), with its own configuration, model
and processor, if its code asks Transformers' interface for attention, as recent code does; the error of other code
counts the layers that do. The code runs in your process and in that of the engine, with all their rights. Without the
option none of it runs, and the error names it. A model that we or Transformers have never runs the code beside its
weights: where `architectures` names a class of Transformers and only `model_type` is unknown, the model is that class,
unless config.json has fields that the class has not, or lacks sizes (Kimi K2, for example, is a DeepSeek-V3). New
weights (`update_weights`) run with the code of the folder that the engine was started with.

With pictures, the model's own processor makes the tower's input, and the tokens of a picture from its size; the
tower's modules are those of the same loaded model. At start two prompts with pictures are computed in our way, and by
the whole model: tokens and hidden states must agree. Models that differ say in what, and run with text alone under
`disable_vision_encoder=True` (`--disable-vision-encoder`): those with tokens that depend on the other pictures of a
prompt, for example; and folders without the processor's file. Rotary positions of several axes (M-RoPE) are made by the
model's own code, and rows that are added behind further layers (DeepStack) go with the embeddings.
Models whose decoder lets a prompt's tokens see later ones do not run, and neither do those whose decoder attends to
pictures beside the text (cross-attention), but for Llama 3.2 Vision, a family above. Videos are videos where the folder
describes a processor of them that makes rows of one, and else taken as pictures. Media have no options but `detail`,
and one with a side more than 200 times as long as the other is refused.

The tests hold these against Transformers in all ways of computing: Cohere 2, Gemma 4's text model,
GPT-NeoX, GraniteMoE with windows and sinks, JetMoe, LongCat-Flash and OPT; with pictures Aria, Aya Vision, Command A
Vision (`cohere2_vision`), Gemma 4 (where a picture's tokens do not see later ones), GLM-OCR, HunyuanOCR, LightOnOCR,
LLaVA-NeXT-Video, PaddleOCR-VL, Qianfan-OCR and ViP-LLaVA; with audio GLM-ASR and Qwen2-Audio; with pictures and audio
Gemma 3n (`google/gemma-3n-E2B-it` and `google/gemma-3n-E4B-it`, whose vision encoder is a model of timm), Gemma 4 and
the thinkers of Qwen2.5-Omni and Qwen3-Omni, whose folders are taken as they are published, without the models that
speak (Transformers fills up sounds of Gemma 3n and Qwen3-Omni beside longer ones, which changes the last embedding of
each; here each sound is computed alone); and two made-up models whose code lies beside their weights, of texts and
with pictures.
"""


_NAMES = """\
## By name

The models of LMDeploy's tables of supported models (version 0.6.5, TurboMind and PyTorch engine on CUDA), by what they
run as here.
"""


def make_page() -> str:
    """Return the page in Markdown."""
    vision, audio, text = _make_rows()
    families = {family for known in list_layouts().values() for family in known}
    timm_families = {name_of(family) for family in families if family.takes_timm_models}
    columns = ("architecture", "family", "pictures: options", "videos: options", "decoders inside", "for example")
    models = [(model.name, f"`{model.example}`", run_as(model)) for model in MODEL_NAMES]
    return "\n".join(
        (
            _HEAD,
            _table(columns, vision),
            _TOWERS.format(
                families=_join(row[0] for row in vision if row[1] in timm_families),
                own=_join(f"`{name}`" for name in PERCEPTION_ENCODERS),
            ),
            _AUDIO,
            _table(("architecture", "family", "decoders inside", "for example"), audio),
            _TEXT,
            _table(("architecture", "decoder", "for example"), text),
            _BACKBONES,
            ", ".join(f"`{name}`" for name in list_backbones()) + ".\n",
            _MODULES,
            _NAMES,
            _table(("model", "for example", "runs as"), models),
        )
    )


def _make_rows() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the rows of the models that take pictures, of those that take audio alone, and of the text models."""
    vision: list[tuple[str, ...]] = []
    audio: list[tuple[str, ...]] = []
    text: list[tuple[str, ...]] = []
    for architecture, family in _list_shown():
        published = published_of(family, architecture)
        decoders = _join(dict.fromkeys(f"`{row.decoder}`" for row in published))
        names = _join(f"`{name}`" for row in published for name in row.names)
        if family.modalities == (Modality.AUDIO,):
            audio.append((f"`{architecture}`", name_of(family), decoders, names))
        elif family.modalities:
            takes = [_options(family, modality) for modality in (Modality.IMAGE, Modality.VIDEO)]
            vision.append((f"`{architecture}`", name_of(family), *takes, decoders, names))
        else:
            text.append((f"`{architecture}`", decoders, names))
    return vision, audio, text


def _list_shown() -> list[tuple[str, type[Family]]]:
    """Return the architectures with their families, without those that are read as another one and of which nothing is
    known to be published."""
    rows = ((architecture, family) for architecture, families in list_layouts().items() for family in families)
    return [
        (architecture, family)
        for architecture, family in sorted(rows, key=_sort_key)
        if architecture in family.architectures or published_of(family, architecture)
    ]


def run_as(model: ModelName) -> str:
    """Return which family runs a model, or why none does. Imports Transformers for those that run its modules."""
    layouts = list_layouts()
    claimed = f"{model.architecture}{WITH_TOWER}{model.tower}" if model.tower else model.architecture
    reason = model.why_not or ("" if claimed in layouts else REASONS.get(claimed, ""))
    if reason:
        return f"does not run: {reason}"
    families = layouts.get(claimed) or (find_family(model.architecture, model.tower),)
    if all(issubclass(family, ModuleTextFamily) for family in families):
        return "Transformers' modules"
    return f"family {_join(dict.fromkeys(map(name_of, families)))}"


def published_of(family: type[Family], architecture: str) -> tuple[Published, ...]:
    """Return the published models of an architecture that the family itself declares, not one that it is made of."""
    declared: tuple[Published, ...] = vars(family).get("published", ())
    is_own = architecture in family.architectures
    return tuple(row for row in declared if row.architecture == architecture or (is_own and not row.architecture))


def name_of(family: type[Family]) -> str:
    """Return the name of a family: that of its file."""
    return family.__module__.rpartition(".")[2]


def _sort_key(entry: tuple[str, type[Family]]) -> tuple[str, str]:
    architecture, family = entry
    return name_of(family), architecture


def _options(family: type[Family], modality: Modality) -> str:
    if modality not in family.modalities:
        return "as pictures"
    return _join(f"`{name}`" for name in family.options.get(modality, ())) if family.options.get(modality) else "yes"


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or _NONE


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
