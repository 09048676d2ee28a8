"""From what a row says to token ids and loss mask, through the model's tokenizer and template."""
