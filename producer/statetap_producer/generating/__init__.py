"""Answers by the target model."""
