"""vLLM under the workload. Runs in vLLM's own environment: a file by itself that imports nothing of ours.

Reads a job with explicit token ids on stdin; the last line of stdout is the row.
"""

import json
import os
import sys
import time


def main() -> None:
    job = json.load(sys.stdin)
    real_stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM logs to stdout
    import vllm
    from vllm import LLM, SamplingParams

    started = time.monotonic()
    llm = LLM(
        job["hf_model"],
        dtype="bfloat16",
        max_num_seqs=64,
        max_model_len=job.get("max_model_len", 2048),
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    ready_s = time.monotonic() - started

    def generate(requests: list[tuple[list[int], int]]) -> float:
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        params = [
            SamplingParams(temperature=0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in requests
        ]
        begun = time.monotonic()
        llm.generate(prompts, params, use_tqdm=False)
        return time.monotonic() - begun

    requests = job["token_requests"]
    generate([(ids, 8) for ids, _ in requests[:4]])
    seconds = generate(requests)
    singles = sorted(generate([(requests[0][0], 128)]) for _ in range(3))
    tokens = sum(n for _, n in requests)
    row = {
        "system": "vllm",
        "output_tokens": tokens,
        "seconds": round(seconds, 3),
        "output_tokens_per_s": round(tokens / seconds, 1),
        "single_stream_tokens_per_s": round(128 / singles[1], 1),
        "ready_s": round(ready_s, 2),
        "note": f"vLLM {vllm.__version__} bf16, preloads: {os.environ.get('LD_PRELOAD') or 'none'}",
    }
    with os.fdopen(real_stdout, "w") as out:
        out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
