"""OpenAI's Responses API: computing, storing and returning responses."""
