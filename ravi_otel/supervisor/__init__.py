"""Decide about tool calls before they happen: review, approval, loops, audit."""
