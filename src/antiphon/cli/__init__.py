"""The command line: `antiphon`. Each module is one command; none holds logic another face would need."""
