"""Run small agents over the plain client, with everything this package gives."""
