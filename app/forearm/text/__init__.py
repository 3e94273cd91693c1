"""Convert strings to token ids and back: tokenizer, chat template, detokenizer. It knows neither HTTP nor the
engine.
"""
