"""The whole evaluation from one file, with settings, methods and experiments as data."""
