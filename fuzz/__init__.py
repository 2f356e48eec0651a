"""Fuzzing: bytes of every sort for everything that reads bytes from outside.

targets     one function per decoder: what must hold, whatever the bytes are
__main__    runs them, with coverage as a guide where atheris is installed

    make fuzz                           each target for a minute
    python -m fuzz batch --seconds 600
    python -m fuzz batch crash-0123…    what was found once, again
"""
