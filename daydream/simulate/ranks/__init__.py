"""Jobs of many ranks: how fast each is, where they meet, one plan for all of them."""
