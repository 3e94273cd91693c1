"""Convert strings to token ids and back."""
