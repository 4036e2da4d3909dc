"""Put a program that knows nothing of us under observation and limits, from outside.

The launcher (`launcher.Launch`) starts the program with our `site` directory first on its path and the `plan.Plan` in its
environment. In each Python process of the program `site/sitecustomize.py` waits for a client package to be
imported, and then `attach.begin` puts the whole process into the launched run. What the processes have to say to the
launcher, they write into the run's `plan.Messages`.
"""
