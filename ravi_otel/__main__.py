"""Run the command line: `python -m ravi_otel`."""

from ravi_otel._cli import main

if __name__ == "__main__":
    main()
