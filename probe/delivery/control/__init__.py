"""What may be asked of a training from outside, its grammar, and its way: files in the rank's folder."""
