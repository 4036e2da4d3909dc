"""Observe and limit a program from outside, without any change to it.

The launcher (`launcher.Launch`) starts the program with our `site` directory first on its path and the `plan.Plan` in its
environment. In each Python process of the program `site/sitecustomize.py` waits for a client package to be
imported, and then `attach.begin` puts the whole process into the launched run. The processes report to the launcher
through the run's `plan.Messages`.
"""
