# OpenCompass asks about sums, as the built-in model was taught: run it in the folder that make_tasks.py wrote.
from opencompass.models import OpenAISDK

datasets = [{"path": "./sums.jsonl", "data_type": "qa", "infer_method": "gen"}]
models = [
    {
        "abbr": "seesay",
        "type": OpenAISDK,
        "path": "seesay-demo",
        "openai_api_base": "http://localhost:23333/v1",
        "key": "none",
        "tokenizer_path": "seesay-demo",  # a folder, such as the one that `seesay.demo.CHECKPOINT` names
        "meta_template": {
            "round": [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "BOT", "api_role": "BOT", "generate": True}]
        },
        "temperature": 0,
        "max_out_len": 96,
        "max_seq_len": 4096,
        "retry": 1,
    }
]
