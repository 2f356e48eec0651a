"""The command line: `antiphon`. Each module is one command, without logic for other interfaces."""
