"""daydream where people are already: SQL, pytest, MLflow and Weights & Biases, notebooks, pull requests."""
