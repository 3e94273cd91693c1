"""Chat templates: messages to a prompt."""
