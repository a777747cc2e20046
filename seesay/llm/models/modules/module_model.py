"""A model of Transformers as modules: probed before it is loaded, loaded strictly, its weights replaced and dropped.

Transformers maps the names of stored tensors to its modules and joins those that it joins (experts, say). Nothing is
unpickled. No code of a checkpoint runs but that of `Checkpoint.code`, which is there where the user allows it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from seesay.checkpoint import Checkpoint, is_buffer
from seesay.errors import CheckpointError, RequestError
from seesay.llm.models.configs.kinds import list_backbones
from seesay.llm.models.modules.module_attention import ATTENTION, StepHolder, bind, register
from seesay.llm.models.modules.module_experts import describe_uneven_experts
from seesay.llm.models.modules.module_linear import join_layers, joined_layers
from seesay.llm.models.modules.module_norm import renew_norms
from seesay.llm.models.modules.module_probe import attending, check_config, probe, set_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from seesay.checkpoint.parts import Part
    from seesay.checkpoint.source import TensorSource

_DOES_NOT_RUN = "does not run through Transformers' modules"
_MOST_TIMES, _FEW_ELEMENTS = 2, 1 << 20
"""How many more parameters than the files have elements a model may have: those of tied weights, and as many more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNames:
    """The names of a decoder's tensors in the files of a model that has other parts, too.

    prefixes: how they begin, and what the modules have in place of that, longer ones first. is_own: whether a stored
    tensor is the decoder's. is_tied: whether its head is the table of embeddings; None: as its configuration says.
    is_text: whether it is the text decoder alone; else towers are among its tensors.
    """

    prefixes: Mapping[str, str]
    is_own: Callable[[str], bool]
    is_tied: bool | None = None
    is_text: bool = True

    def find_stored(self, name: str) -> str:
        """Return the name in the files of the modules' tensor `name`."""
        fitting = [(new, stored) for stored, new in self.prefixes.items() if name.startswith(new)]
        new, stored = max(fitting, key=lambda each: len(each[0]), default=("", ""))
        return stored + name[len(new) :]


class ModuleModel:
    """The modules of a model, on one device once they are loaded. skeleton: other ones without weights, for code of the
    model that needs none."""

    def __init__(
        self, checkpoint: Checkpoint, auto_class: str, *, names: DecoderNames | None = None, nearest: str = ""
    ) -> None:
        """Build the modules without weights and probe them (`module_probe.py`). `auto_class`: the name of the class of
        Transformers that makes the model, such as 'AutoModelForCausalLM', unless it is code in the folder. `names`:
        those of its tensors, where the model is the text decoder of the checkpoint's. Raises `CheckpointError` saying
        what cannot run, and at its end, which model is `nearest` to this one."""
        register()
        self._checkpoint, self._auto_class = checkpoint, auto_class
        self._names, self._nearest = names, nearest
        self._config = _find_config(checkpoint, names)
        with self.blaming():
            check_config(self._config.get_text_config(decoder=True))
        with self.blaming("its modules cannot be made of its config.json"):
            self.skeleton = self._build_empty()
        self._num_elements = sum(parameter.numel() for parameter in self.skeleton.parameters())
        with self.blaming("its modules fail in a trial with a few tokens and weights of zeros"):
            self.probed = probe(self.skeleton)
        self.model: PreTrainedModel | None = None

    def load(self, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
        """Return the model with its weights; on the meta device, without values."""
        if self.model is None:
            with self.blaming():
                self.model = self._build_empty() if device.type == "meta" else self._read(self._checkpoint, dtype)
            self.model = self.model.to(device).eval().requires_grad_(False)
            join_layers(self.model, but=self.model.get_decoder())
        return self.model

    def bind(self, holder: StepHolder) -> list[torch.nn.Module]:
        """Let the layers of the loaded decoder attend through `holder`. Returns the modules that do."""
        assert self.model is not None
        modules = [self.model.get_submodule(name) for name in self.probed.modules]
        bind(modules, self.probed.shapes, holder)
        self._own_attention = set_attention(self.model, ATTENTION)
        return modules

    @contextlib.contextmanager
    def attending_itself(self) -> Iterator[None]:
        """Let the model attend as it does without us, inside of the block."""
        assert self.model is not None
        with attending(self.model, self._own_attention):
            yield

    def read_again(self, source: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
        """Return another model of the same kind with the weights in `source`, on the CPU."""
        with self.blaming():
            return self._read(source, dtype)

    def _class(self) -> Any:
        """Return what has `from_pretrained`: the auto class, or the model's own."""
        import transformers

        code = self._checkpoint.code
        return getattr(transformers, self._auto_class) if code is None else code.load_class(code.model)

    def _build_empty(self) -> PreTrainedModel:
        config = copy.deepcopy(self._config)
        with torch.device("meta"), _quiet():
            maker = self._class()
            is_auto = self._checkpoint.code is None
            model: PreTrainedModel = (
                maker.from_config(config, trust_remote_code=False) if is_auto else maker._from_config(config)
            )
        return model.eval()

    def _read(self, source: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
        self._check_size(source)
        try:
            return self._read_strictly(source, dtype)
        except (CheckpointError, RuntimeError) as error:
            is_of_experts = not isinstance(error, CheckpointError) or "experts" in str(error)
            fault = (
                describe_uneven_experts(source, self._config.get_text_config(decoder=True)) if is_of_experts else None
            )
            if fault is None:
                raise
            raise CheckpointError(f"{source.path}: {fault}") from error

    def _read_strictly(self, source: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
        with _quiet():
            model, report = self._class().from_pretrained(
                source.path,
                config=copy.deepcopy(self._config),
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # the report names them
                trust_remote_code=False,
                output_loading_info=True,
                # Tensors of other parts, which have other names, are not read.
                key_mapping=None
                if self._names is None
                else {f"^{re.escape(stored)}": name for stored, name in self._names.prefixes.items()},
            )
        _check_report(source, report, self._names)
        found: PreTrainedModel = model
        return found

    def _check_size(self, source: Checkpoint) -> None:
        """Raise `CheckpointError` for a configuration of a much larger model than the files have, which would be made
        before a tensor is missed: a part of the configuration that is left out has the sizes of some published model.
        """
        names = (name for name in source.tensor_names() if self._names is None or self._names.is_own(name))
        stored = sum(math.prod(source.find(name).shape) for name in names)
        if self._num_elements > _MOST_TIMES * stored + _FEW_ELEMENTS:
            raise CheckpointError(
                f"{source.path}: config.json describes a model of {self._num_elements:,} parameters, and the files "
                f"have {stored:,}: a part of the configuration is missing, or is another model's"
            )

    @contextlib.contextmanager
    def blaming(self, what: str = "its modules fail", *, verdict: str = _DOES_NOT_RUN) -> Iterator[None]:
        """Name the model and the `verdict` in `CheckpointError`s, and turn exceptions of Transformers' code into such,
        whose reason begins with `what`: it is not ours, and may raise anything."""
        path = self._checkpoint.path
        try:
            yield
        except (RequestError, MemoryError, torch.OutOfMemoryError):
            raise
        except CheckpointError as error:
            if str(error).startswith(f"{path}: "):
                raise
            raise self._explain(verdict, str(error)) from error
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise self._explain(verdict, f"{what} ({type(error).__name__}: {reason})") from error

    def _explain(self, verdict: str, reason: str) -> CheckpointError:
        """Return the error for a model that cannot run, or not with pictures, with what can."""
        checkpoint = self._checkpoint
        kind = str(checkpoint.text_config.model_type)
        is_inside = verdict == _DOES_NOT_RUN and kind in list_backbones() and kind != checkpoint.model_config.model_type
        inside = f"text models of type {kind!r} do, and " if is_inside else ""
        return CheckpointError(
            f"{checkpoint.path}: {checkpoint.architecture} {verdict}: {reason}"
            f"{self._nearest}; {inside}docs/models.md lists what runs"
        )


def _find_config(checkpoint: Checkpoint, names: DecoderNames | None) -> Any:
    if names is None or not names.is_text:
        return checkpoint.hf_config()
    config = copy.deepcopy(checkpoint.text_config.to_transformers())
    if names.is_tied is not None:
        config.tie_word_embeddings = names.is_tied
    return config


class ModuleWeights:
    """The weights of a `ModuleModel`, as `LoadedLayers` has those of ours: all of them are replaced from a folder."""

    def __init__(self, owner: ModuleModel, device: torch.device, dtype: torch.dtype) -> None:
        self._owner = owner
        self.device, self.dtype = device, dtype

    def name_of(self, name: str) -> str | None:
        return None if is_buffer(name) else name

    def is_unread(self, name: str) -> bool:  # noqa: ARG002
        """Names are not checked one by one: `check` reads the whole folder."""
        return True

    def parts(self) -> Mapping[str, Part]:
        return {}

    def tensors(self) -> list[torch.Tensor]:
        model = self._owner.model
        assert model is not None
        joined = [tensor for product, _ in joined_layers(model) for tensor in product.tensors]
        return [*model.parameters(), *model.buffers(), *joined]

    def check(self, source: TensorSource, *, is_partial: bool) -> None:
        """Raise what `replace` would raise."""
        self._read(source, is_partial=is_partial)

    def replace(self, source: TensorSource, *, is_partial: bool) -> None:
        """Load the weights of a folder in place of those that are there or were dropped."""
        assert self._owner.model is not None
        new = self._read(source, is_partial=is_partial).state_dict()
        taken: dict[int, torch.Tensor] = {}
        for name, tensor in self._owner.model.state_dict(keep_vars=True).items():
            if not tensor.numel():
                tensor.data = tensor.new_empty(new[name].shape)
            tensor.data.copy_(new[name])
            taken[new[name].data_ptr()] = tensor.data
        for product, layers in joined_layers(self._owner.model):
            weights = {layer.index: new[f"{name}.weight"] for name, layer in layers.items()}
            product.take(  # a head that is tied shares the table of embeddings
                {index: taken.get(one.data_ptr(), one).to(self.device) for index, one in weights.items()}
            )
        renew_norms(self._owner.model)

    def drop(self) -> None:
        """Free all weights."""
        assert self._owner.model is not None
        for product, _ in joined_layers(self._owner.model):
            product.drop()
        for parameter in self._owner.model.parameters():
            parameter.data = parameter.data.new_empty(0)
        renew_norms(self._owner.model)

    def _read(self, source: TensorSource, *, is_partial: bool) -> PreTrainedModel:
        if is_partial or not isinstance(source, Checkpoint):
            raise CheckpointError(
                f"{source.path}: a model that runs through Transformers' modules takes the weights of a whole folder, "
                "not single tensors"
            )
        return self._owner.read_again(source, self.dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Transformers' own bars and advice away: what is wrong is raised."""
    from transformers.utils import logging as their_logging

    level, has_bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(level)
        if has_bars:
            their_logging.enable_progress_bar()


def _check_report(source: Checkpoint, report: Mapping[str, Any], names: DecoderNames | None) -> None:
    """Raise `CheckpointError` naming a tensor that is missing, or has another shape than the configuration says.
    `names`: those of the model's tensors in the files, where these have other parts, too."""
    for kind, message in (
        ("missing_keys", "is missing from the checkpoint"),
        ("mismatched_keys", "has another shape than the config says"),
        ("error_msgs", "cannot be read"),
        ("conversion_errors", "cannot be converted"),
    ):
        if found := sorted(map(_name_of_key, report.get(kind) or ())):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            stored = found[0] if names is None else names.find_stored(found[0])
            raise CheckpointError(f"{source.path}: tensor {stored!r} {message}{more}")
    unexpected = set(map(_name_of_key, report.get("unexpected_keys") or ()))
    if names is not None:  # those of other parts are unchanged
        unexpected = {names.find_stored(n) for n in unexpected - source.tensor_names()} & source.tensor_names()
    if unexpected:
        raise CheckpointError(f"{source.path}: unexpected tensor {min(unexpected)!r}")


def _name_of_key(key: object) -> str:
    return str(key[0] if isinstance(key, tuple) else key)
