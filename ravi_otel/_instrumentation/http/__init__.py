"""Follow the HTTP calls of any client that is generated with the base classes `openai`, `anthropic` and `groq` share."""
