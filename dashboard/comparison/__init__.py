"""Two runs side by side: what they were started with, and the first step at which their numbers part."""
