"""lm-evaluation-harness (EleutherAI) over a `pipeline`: `python -m seesay.harnesses.lm_eval run --model seesay …`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from seesay.config import GenerationConfig
from seesay.errors import ErrorCode, RequestError
from seesay.harnesses.arguments import open_pipeline, read_generation
from seesay.offline.ordered_answers import collect_answers
from seesay.offline.perplexity import score_prompts
from seesay.values import GenerationRequest, RenderedPrompt
from seesay.vl.prompts.conversation_parts import parse_messages

Scored = tuple[tuple[str, str] | None, list[int], list[int]]
"""What is cached by, the tokens of a context, and those of what follows it."""


@register_model("seesay")
class SeesayLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """A model behind a pipeline.

    pretrained: as `model_path` of `pipeline`. max_gen_toks: most tokens of an answer, where a task does not say.
    prefix_token_id: what likelihoods without a context begin with, instead of the BOS or the EOS. enable_thinking:
    see `Pipeline.infer`; with think_end_token, the text that ends a model's thoughts, an answer begins behind them, and
    a task's stop words are looked for there. device, options: see `open_pipeline`.
    """

    def __init__(
        self,
        pretrained: str = "seesay-demo",
        *,
        max_gen_toks: int = 256,
        prefix_token_id: int | None = None,
        enable_thinking: bool | None = None,
        think_end_token: str | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._pipe = open_pipeline(pretrained, device, options)
        self._name, self._max_gen_toks, self._prefix = pretrained, max_gen_toks, prefix_token_id
        self._thinking, self._think_end = enable_thinking, think_end_token
        self.tokenizer = self._pipe.tokenizer

    @property
    def max_length(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self._pipe.engine.session_len

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        if (token := self.tokenizer.eos_token_id) is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the tokenizer has no EOS: give prefix_token_id", "context")
        return int(token)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        if self._prefix is not None:
            return self._prefix
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """A name for the files of requests that lm-eval caches."""
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the token ids that the engine has for a raw text. add_special_tokens: False leaves out the BOS."""
        rendered = RenderedPrompt(text=string, takes_prefix=add_special_tokens is not False)
        ids: list[int] = self.tokenizer.encode_prompt(rendered)[0].tolist()
        return ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template that `apply_chat_template` uses. Raises ValueError where another is asked for by name."""
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise ValueError(f"--apply_chat_template {chat_template}: a name is not supported; leave it out")
        template = self._pipe.chat_template
        return "\n".join(template.sources) or repr(template)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation; without a generation prompt its last message goes on."""
        options: dict[str, Any] = {} if self._thinking is None else {"enable_thinking": self._thinking}
        messages = parse_messages(chat_history)
        rendered = self._pipe.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final=not add_generation_prompt,
            **options,
        )
        return rendered.text

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer raw texts. The beginning of one that leaves no room for its answer is cut off."""
        configs = [read_generation(instance.args[1], self._max_gen_toks) for instance in requests]
        asked = []
        for instance, config in zip(requests, configs):
            room = max(self.max_length - (config.max_new_tokens or 0), 1)
            if self._think_end is not None:
                config = replace(config, stop_words=None)
            tokens = self.tok_encode(instance.args[0])[-room:]
            asked.append(GenerationRequest(prompt=tuple(tokens), gen_config=config))
        answers = collect_answers(self._pipe.engine, asked, use_tqdm=not disable_tqdm)
        texts = []
        for instance, config, answer in zip(requests, configs, answers):
            if answer.error is not None:
                raise answer.error
            text = answer.text
            if self._think_end is not None:
                text = postprocess_generated_text(text, config.stop_words, self._think_end)
            self.cache_hook.add_partial("generate_until", instance.args, text)
            texts.append(text)
        return texts

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text, in windows as long as the model takes."""
        windows: list[tuple[int, Scored]] = []
        for index, instance in enumerate(requests):
            pieces = get_rolling_token_windows(
                token_list=self.tok_encode(instance.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            windows += [(index, (None, *make_disjoint_window(piece))) for piece in pieces]
        scores = self._loglikelihood_tokens([window for _, window in windows], disable_tqdm=disable_tqdm)
        totals = [0.0] * len(requests)
        for index, own in groupby(zip(windows, scores), key=lambda pair: pair[0][0]):
            totals[index] = math.fsum(score for _, (score, _) in own)
            self.cache_hook.add_partial("loglikelihood_rolling", requests[index].args, totals[index])
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Scored], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return of each continuation its log-likelihood, and whether it is what the model would answer. The beginning
        of a context that does not fit is cut off."""
        config = GenerationConfig(prompt_logprobs=0)
        if (longest := max((len(continuation) for *_, continuation in requests), default=0)) >= self.max_length:
            problem = f"a continuation of {longest} tokens is too long: session_len={self.max_length}"
            raise RequestError(ErrorCode.CONTEXT_TOO_LONG, problem, "continuation")
        asked = [
            GenerationRequest(
                prompt=tuple([*context, *continuation][-self.max_length :]), gen_config=config, wants_answer=False
            )
            for _, context, continuation in requests
        ]
        scores = [(0.0, True)] * len(requests)
        with tqdm(total=len(asked), desc="likelihoods", disable=True if disable_tqdm else None) as bar:
            for index, found in score_prompts(self._pipe.engine, asked):
                key, _, continuation = requests[index]
                own = found[len(found) - len(continuation) :]
                scores[index] = (float(own.values[:, 0].sum(dtype="float64")), bool((own.ranks == 1).all()))
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, scores[index])
                bar.update()
        return scores


if __name__ == "__main__":
    cli_evaluate()
