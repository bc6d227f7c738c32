"""The replay of a failing step: which op, in which module, at which line made the first NaN or Inf."""
