"""Text to tokens and back: tokenizer, chat templates, detokenizer, stop strings, structured output. No scheduling."""
