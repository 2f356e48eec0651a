"""Who acts: clients that publish and consume, and what goes wrong around them."""
