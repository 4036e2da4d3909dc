"""Be the screen of `ravi-otel top`. The only room that knows Textual; imported when the screen is shown, and not before."""
