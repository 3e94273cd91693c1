"""Between strings and token ids: tokenizer, chat template, detokenizer. No HTTP, no engine."""
