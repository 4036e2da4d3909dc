"""Put answers into the bytes the OpenAI API would send, one file per endpoint family."""
