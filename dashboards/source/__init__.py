"""Generate the dashboards under `dashboards/`: `make dashboards` writes them, a test keeps them equal to what is written here."""
