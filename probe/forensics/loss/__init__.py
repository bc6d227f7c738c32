"""The lines between a model's outputs and `backward`: reading, running again, and the origin among them."""
