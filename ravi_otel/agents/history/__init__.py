"""Keep conversations, and shorten them."""
