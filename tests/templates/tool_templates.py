"""Chat templates with tools, written after those of published models: how each brings tools, calls and results."""

from __future__ import annotations

HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nFor each call, return <tool_call>\\n{"name": <name>, "arguments": <json>}\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' }}
        {%- if message.content is string %}{{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
                {%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
                {%- else %}{{- part.text }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# As `HERMES`, with a place for pictures in results, as Qwen3-VL's.
HERMES_WITH_PICTURES = HERMES.replace(
    "'<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}",
    """'<|im_start|>user\\n<tool_response>\\n' }}
        {%- if message.content is string %}{{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
                {%- else %}{{- part.text }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '\\n</tool_response><|im_end|>\\n' }}""",
)
assert HERMES_WITH_PICTURES != HERMES

# Arguments are JSON text, as in DeepSeek V3's.
DEEPSEEK = """{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}
{% endfor %}{% for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- for call in message.tool_calls %}{{- call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' }}
{%- endfor %}
{%- else %}{{- '<' + message.role + '>' + message.content }}{%- endif %}{% endfor %}"""

# Ids have nine characters, and roles must alternate, as in Mistral's.
MISTRAL = """{{ bos_token }}{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
    {%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids must have length 9') }}{%- endif %}
    {{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}' }}
{%- elif message.tool_calls %}
    {{- '[TOOL_CALLS][' }}
    {%- for call in message.tool_calls %}
        {%- if call.id | length != 9 %}{{- raise_exception('ids must have length 9') }}{%- endif %}
        {{- call.function | tojson | replace('}}', '}') }}{{- ', "id": "' + call.id + '"}' }}
    {%- endfor %}
    {{- ']' }}
{%- else %}{{- message.content }}{%- endif %}
{%- endfor %}"""

# Arguments are taken one by one, as by Qwen3-Coder's and GLM's.
XML = """{%- for tool in tools or [] %}<function>{{ tool.function.name }}</function>{% endfor %}
{%- for message in messages %}
{%- if message.tool_calls %}
    {%- for call in message.tool_calls %}
        {{- '<function=' + call.function.name + '>' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<parameter=' + name + '>' }}
            {{- value if value is string else value | tojson }}{{- '</parameter>' }}
        {%- endfor %}
        {{- '</function>' }}
    {%- endfor %}
{%- else %}{{- '<' + message.role + '>' + message.content }}{%- endif %}
{%- endfor %}"""
