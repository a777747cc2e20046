# OpenCompass: `opencompass seesay.py`.
from mmengine.config import read_base
from opencompass.models import OpenAISDK

with read_base():
    from opencompass.configs.datasets.gsm8k.gsm8k_gen import gsm8k_datasets

datasets = [*gsm8k_datasets]
models = [
    {
        "abbr": "seesay",
        "type": OpenAISDK,
        "path": "Qwen/Qwen2.5-VL-7B-Instruct",
        "openai_api_base": "http://localhost:23333/v1",
        "key": "none",
        "tokenizer_path": "Qwen/Qwen2.5-VL-7B-Instruct",
        "meta_template": {
            "round": [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "BOT", "api_role": "BOT", "generate": True}]
        },
        "temperature": 0,
        "max_out_len": 2048,
        "max_seq_len": 16384,
        "batch_size": 32,
        "query_per_second": 32,
        "retry": 3,
    }
]
