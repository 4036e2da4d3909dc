"""Wrap other people's packages, and nothing more of them than needed."""
