"""A run inside of a notebook: a card under the cell, which is redrawn while the training goes on."""
