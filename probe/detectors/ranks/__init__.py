"""What only several ranks together show: divergence, the first bad rank, stragglers. Numbers in and out."""
