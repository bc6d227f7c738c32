"""The second process of a host: tails the journals and ships them, and watches the trainers from outside."""
