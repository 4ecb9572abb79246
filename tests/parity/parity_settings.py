"""What the parity tests run: the model, and how many tokens of each prompt."""

MODEL = "smollm2"
NEW_TOKENS = 64
