"""ChatML, as models for ranking and embeddings were trained with it: every turn with its role, and media of the Qwen-VL
families where their parts stand."""

TURNS = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'text' %}{{ part.text }}"
    "{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{ '<|im_end|>\n' }}{%- endfor %}"
)
ANSWER = "{{ '<|im_start|>assistant\n' }}"
