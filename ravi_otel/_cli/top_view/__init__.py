"""See what runs on this machine now, and say it in lines; the screen that shows them is in `top_screen`."""
